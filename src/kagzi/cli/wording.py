"""What the client says of an error, said to somebody who typed a command: options in place of arguments, commands in
place of methods. Nothing is left out.
"""

from __future__ import annotations

import re

from kagzi.cli.parameters import listing, typed
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
# An argument that a sentence begins with, as labels['k'] or id.
_SUBJECT = re.compile(r"^((?:a (?:key|step) of )?)([a-z_]+)(?:\[([^\]]*)\])?(?= )")
# A policy that a command made of its option.
_RETRY = re.compile(r"^Retry\(max_attempts=([^)]*)\)")
# Options that are called otherwise than the arguments.
_OPTIONS = {"labels": "label"}
# What servers call by the contract's names.
_COMMANDS = {"with ResolveMutation": "with `kagzi automations resolve`"}


def spoken(error: KagziError) -> str:
    """The error's message for the shell."""
    text = str(error)
    if isinstance(error, RunFailed | RunCancelled):
        return text.replace("`handle.retry()`", f"`kagzi runs retry {error.run_id}`")
    if isinstance(error, ServerError):
        return _refused(error)
    if isinstance(error, ConfigError):
        said = _RETRY.sub(r"--attempts \1", _QUOTED.sub(r"--\1", text)).replace(", a timedelta", "")
        return _SUBJECT.sub(_subject, _ARGUMENT.sub(_option, said))
    return text


def _refused(error: ServerError) -> str:
    said = error.message.rstrip(".").replace("or the client's first argument", "or --url") or error.code
    for theirs, ours in _COMMANDS.items():
        said = said.replace(theirs, ours)
    advice = _ADVICE.get(type(error), error.advice)
    if error.field:
        if isinstance(error, InvalidArgument):
            said = _named(said, error.field)
        # What is no id at all is looked up where an unknown one is.
        shown = listing(error.field) if isinstance(error, NotFound) or " is no UUID " in said else None
        advice = f"{advice} `{shown}` shows them." if shown else advice
    return f"{said}. {advice.strip()}".strip()


def _named(said: str, field: str) -> str:
    """A refusal with what is typed in place of the field, or with the field where nothing is typed for it."""
    ours = typed(field)
    if ours is None:
        last = field.rpartition(".")[2]
        return said if last in said else f"{last}: {said}"
    # A field of one word may be a word of the sentence as well, except where the sentence begins.
    where = "" if "." in field or "_" in field else "^"
    told, count = re.subn(rf"{where}(?<![\w.'\"-]){re.escape(field)}(?![\w.'\"])", lambda _: ours, said)
    return told if count else f"{ours}: {said}"


def _subject(found: re.Match[str]) -> str:
    ours = typed(found[2])
    if ours is None:
        return found[0]
    return f"{found[1]}{ours}" + (f" {found[3]}" if found[3] else "")


def _option(found: re.Match[str]) -> str:
    name = typed(found[1]) or f"--{_OPTIONS.get(found[1], found[1]).replace('_', '-')}"
    follows = found.string[found.end() : found.end() + 1]
    return name if follows in (" ", ",", ".", "") else f"{name} "
