"""What the client says of an error, said to somebody who typed a command: options in place of arguments, commands in
place of methods. Nothing is left out.
"""

from __future__ import annotations

import re

from kagzi.sdk.errors import (
    ConfigError,
    Conflict,
    InvalidArgument,
    KagziError,
    NotFound,
    PreconditionFailed,
    RunCancelled,
    RunFailed,
    ServerError,
    Unauthorized,
    Unavailable,
)

# What to do, where the message does not say it.
_ADVICE: dict[type[ServerError], str] = {
    NotFound: "Check the name and the namespace (--namespace); retention may have removed it.",
    Unauthorized: "Set KAGZI_API_KEY to a key of this namespace whose role allows the call.",
    Unavailable: "Check that the server (--url) and its database are up, or try again in a moment.",
    InvalidArgument: "",
    Conflict: "",
    PreconditionFailed: "",
}
# An argument by name, as in overlap='x' or cron=, but not within a call that the reader's code makes.
_ARGUMENT = re.compile(r"(?<![\w(])([a-z_]+)=(?:(?=['\"\d{\[-])|(?=[\s,.]))")
_QUOTED = re.compile(r"`(delay|at)`")
# Options that are called otherwise than the arguments.
_OPTIONS = {"labels": "label"}
# What servers call by the contract's names.
_COMMANDS = {
    "with ResolveMutation": "with `kagzi automations resolve`",
    "mutation_id is": "--mutation is",
}


def spoken(error: KagziError) -> str:
    """The error's message for the shell."""
    text = str(error)
    if isinstance(error, RunFailed | RunCancelled):
        return text.replace("`handle.retry()`", f"`kagzi runs retry {error.run_id}`")
    if isinstance(error, ServerError):
        return _refused(error)
    if isinstance(error, ConfigError):
        return _ARGUMENT.sub(_option, _QUOTED.sub(r"--\1", text)).replace(", a timedelta", "")
    return text


def _refused(error: ServerError) -> str:
    said = error.message.rstrip(".").replace("or the client's first argument", "or --url") or error.code
    for theirs, ours in _COMMANDS.items():
        said = said.replace(theirs, ours)
    field = error.field.rpartition(".")[2]
    if isinstance(error, InvalidArgument) and field not in error.message:
        said = f"{field}: {said}"
    return f"{said}. {_ADVICE.get(type(error), error.advice)}".strip()


def _option(found: re.Match[str]) -> str:
    name = _OPTIONS.get(found[1], found[1]).replace("_", "-")
    follows = found.string[found.end() : found.end() + 1]
    return f"--{name}" if follows in (" ", ",", ".", "") else f"--{name} "
