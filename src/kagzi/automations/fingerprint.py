"""The hash of an automation's definition: another one means that something was declared or written differently, and a
worker deploys it. It covers the declarations and the source of the modules they stand in, because a mended function
beside a handler mends the handler; it is the same in every process that has the same source.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable
from types import CodeType
from typing import Any

from google.protobuf.message import Message


def fingerprint(definitions: Iterable[Message], sources: Iterable[Any]) -> str:
    """The hash over declarations and the code behind them."""
    digest = hashlib.sha256()
    for definition in definitions:
        digest.update(definition.SerializeToString(deterministic=True))
        digest.update(b"\0")
    for text in sorted({_source(each) for each in sources}):
        digest.update(text.encode(errors="surrogatepass"))
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def _source(given: Any) -> str:
    held = given if inspect.isclass(given) or inspect.isroutine(given) else type(given)
    plain = inspect.unwrap(held)
    try:
        module = inspect.getmodule(plain)
        return inspect.getsource(module if module is not None else plain)
    except (OSError, TypeError):
        # Typed into a console, or made by `exec`.
        functions = vars(plain).values() if inspect.isclass(plain) else (plain,)
        return "\n".join(
            _code(code) for each in functions if isinstance(code := getattr(each, "__code__", None), CodeType)
        )


def _code(code: CodeType) -> str:
    """What the interpreter runs; unlike its `repr` the same in every process."""
    constants = [_code(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return repr((code.co_name, code.co_code, code.co_names, constants))
