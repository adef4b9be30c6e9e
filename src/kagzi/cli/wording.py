"""What the client says of an error, said to somebody who typed a command: options in place of arguments, commands in
place of methods. Nothing is left out.
"""

from __future__ import annotations

import re

from kagzi.sdk.errors import (
    ConfigError,
    KagziError,
    NotFound,
    RunCancelled,
    RunFailed,
    ServerError,
    Unauthorized,
    Unavailable,
)

_ADVICE: dict[type[ServerError], str] = {
    NotFound: "Check the id and the namespace (--namespace); retention may have removed it.",
    Unauthorized: "Set KAGZI_API_KEY to a key of this namespace whose role allows the call.",
    Unavailable: "Try again in a moment; check that the server (--url) and its database are up.",
}
# An argument by name, as in overlap='x' or cron=, but not within a call that the reader's code makes.
_ARGUMENT = re.compile(r"(?<![\w(])([a-z_]+)=(?:(?=['\"\d{\[-])|(?=[\s,.]))")
# Options that are called otherwise than the arguments.
_OPTIONS = {"labels": "label"}


def spoken(error: KagziError) -> str:
    """The error's message for the shell."""
    text = str(error)
    if isinstance(error, RunFailed | RunCancelled):
        return text.replace("`handle.retry()`", f"`kagzi runs retry {error.run_id}`")
    if isinstance(error, ServerError):
        return text.removesuffix(error.advice) + _ADVICE.get(type(error), error.advice)
    return _ARGUMENT.sub(_option, text) if isinstance(error, ConfigError) else text


def _option(found: re.Match[str]) -> str:
    name = _OPTIONS.get(found[1], found[1]).replace("_", "-")
    follows = found.string[found.end() : found.end() + 1]
    return f"--{name}" if follows in (" ", ",", ".", "") else f"--{name} "
