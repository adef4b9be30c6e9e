"""Options of a start as users write them, checked where they are written: each check answers with the value to send, or
raises ConfigError with the option's name and what is accepted. The server checks the same again; refused there, inside
a workflow, it would cost the run its place.
"""

from __future__ import annotations

import reprlib
import uuid as standard_uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from kagzi.protocol.v1.common_pb2 import Payload
from kagzi.sdk import duration
from kagzi.sdk.definition import Workflow, check_name
from kagzi.sdk.errors import ConfigError, PayloadError
from kagzi.sdk.retry import Retry
from kagzi.sdk.shapes.shape import type_name

_MOST_LABELS = 32


def workflow(given: Any) -> tuple[str, Workflow[Any, Any] | None]:
    """The name of what is to run, and its declaration if that was given."""
    if isinstance(given, Workflow):
        return given.name, given
    if not isinstance(given, str):
        raise ConfigError(
            f"a workflow is given as the function decorated with @workflow, or by its name, and not as {_shown(given)}"
        )
    check_name(given, "workflow")
    return given, None


def name(given: Any, option: str) -> str:
    """A name; empty when none is given, which is None: an empty text is a slip, as of a form that was not filled in."""
    if given is None:
        return ""
    check_name(given, option)
    return str(given)


def required(given: Any, option: str) -> str:
    """A name that has to be there."""
    check_name(given, option)
    return str(given)


def uuid(given: Any, option: str) -> str:
    """A UUID, as text or as one."""
    try:
        return str(given if isinstance(given, standard_uuid.UUID) else standard_uuid.UUID(given))
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f"{option}={reprlib.repr(given)} must be a UUID, as of handle.run_id.") from None


def version(given: Any) -> str:
    """A version; empty for none."""
    return name(given or None, "version")


def text(given: Any, option: str) -> str:
    """Text of any kind: what it may be the server knows."""
    if not isinstance(given, str):
        raise ConfigError(f"{option} must be text, got {reprlib.repr(given)}")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{option} holds half of a surrogate pair, which is no character: {given[:80]!a}") from None
    return given


def payload(declared: Workflow[Any, Any], given: Any, encode: Callable[[], Payload]) -> Payload:
    """An input as `encode` makes it; where there has to be one and none is given, ConfigError says that."""
    try:
        return encode()
    except PayloadError as error:
        if given is not None:
            raise
        raise ConfigError(
            f"Workflow {declared.name!r} takes an input of type {type_name(declared.input)}, and was given none."
        ) from error


def priority(given: Any) -> int:
    """A whole number from 0 to 4."""
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= 4:
        raise ConfigError(f"priority={given!r} must be a whole number from 0 to 4.")
    return given


def labels(given: Any) -> dict[str, str]:
    """At most 32 texts by name; a value may be empty."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f'labels={given!r} must be a mapping of texts, as {{"customer": "7"}}.')
    if len(given) > _MOST_LABELS:
        raise ConfigError(f"labels={given!r} has {len(given)} entries, and at most {_MOST_LABELS} are stored.")
    for key, value in given.items():
        check_name(key, "a key of labels")
        if value != "":
            check_name(value, f"labels[{key!r}]")
    return dict(given)


def outputs(given: Any) -> dict[str, Any]:
    """Values by the steps that are to have given them."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f'outputs={reprlib.repr(given)} must be a mapping of steps to values, as {{"charge": 7}}.')
    return {text(step, "a step of outputs"): value for step, value in given.items()}


def retry(given: Any) -> Retry | None:
    """A retry policy, if one is given."""
    if given is not None and not isinstance(given, Retry):
        raise ConfigError(f"retry={given!r} must be a Retry, as Retry(max_attempts=5).")
    return given


def moment(given: Any, option: str) -> datetime:
    """A time that says where it is meant."""
    if not isinstance(given, datetime):
        raise ConfigError(f"{option}={given!r} must be a datetime with a time zone.")
    if given.tzinfo is None:
        raise ConfigError(f"{option}={given!r} has no time zone: give one, as datetime(..., tzinfo=UTC).")
    return given


def length(given: Any, option: str) -> timedelta:
    """A length of time."""
    return duration.named(given, option)


def milliseconds(given: Any, option: str) -> int:
    """A length of time in whole milliseconds, rounded up."""
    return duration.milliseconds(length(given, option))


def count(given: Any, option: str) -> int:
    """A whole number from 0 on."""
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < 2**31:
        raise ConfigError(f"{option}={given!r} must be a whole number, 0 or more.")
    return given


def flag(given: Any, option: str) -> bool:
    """True or False, and nothing that only looks like one of them."""
    if not isinstance(given, bool):
        raise ConfigError(f"{option}={given!r} must be True or False.")
    return given


def _shown(given: Any) -> str:
    return f"{type(given).__name__} {getattr(given, '__name__', None) or getattr(given, 'name', None) or given!r}"
