"""What a mutation is called with, as it stands in the ledger: a JSON object of its parameters, each written as its
annotation says. The tool and, perhaps much later and in another process, its reconciler get the same values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from kagzi.automations.signatures import declared
from kagzi.sdk import payload
from kagzi.sdk.errors import ConfigError, PayloadError
from kagzi.sdk.payload import Payload


def encode(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bytes:
    """The arguments of a call as bytes. ConfigError when the function does not take them, PayloadError when one has no
    encoded form.
    """
    takes = declared(function)
    try:
        bound = takes.signature.bind(*arguments, **keywords)
    except TypeError as error:
        raise ConfigError(f"{_name(function)} cannot be called so: {error}.") from None
    written = {}
    for name, value in bound.arguments.items():
        try:
            written[name] = msgspec.Raw(payload.encode(value, takes.annotations[name]).data)
        except PayloadError as error:
            error.add_note(f"as the parameter {name!r} of {_name(function)}")
            raise
    return msgspec.json.encode(written)


def decode(function: Callable[..., Any], data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments and keyword arguments that were encoded. PayloadError when the function takes others now."""
    takes = declared(function)
    try:
        written = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise PayloadError(f"The recorded arguments of {_name(function)} cannot be read: {error}.") from None
    unknown = written.keys() - takes.annotations.keys()
    if unknown:
        names = ", ".join(sorted(map(repr, unknown)))
        raise PayloadError(
            f"{_name(function)} was called with {names} and takes no such parameter any more: restore it until the "
            "mutation is settled."
        )
    values = {name: payload.decode(Payload(bytes(raw)), takes.annotations[name]) for name, raw in written.items()}
    bound = inspect.BoundArguments(takes.signature, values)
    return bound.args, bound.kwargs


def _name(function: Callable[..., Any]) -> str:
    return repr(getattr(function, "__name__", function))
