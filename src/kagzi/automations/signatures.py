"""What functions of users are declared to take, found once for each function: every run of a handler asks."""

from __future__ import annotations

import inspect
import typing
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_SPREAD = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Declared:
    """A function's signature, and what each parameter is declared to be: Any where it does not say, and for the whole
    of `*args` and `**kwargs`.
    """

    signature: inspect.Signature
    annotations: Mapping[str, Any]

    def at(self, index: int) -> Any:
        """What the parameter at this place is declared to be."""
        return dict(enumerate(self.annotations.values())).get(index, Any)


def declared(function: Callable[..., Any]) -> Declared:
    """What a function is declared to take."""
    # A method is another object each time it is asked for; the function behind it stays.
    known, key = (_known, function) if not inspect.ismethod(function) else (_methods, function.__func__)
    try:
        found = known.get(key)
    except TypeError:
        return _look(function)
    if found is None:
        found = known[key] = _look(function)
    return found


# Weak: a function made inside another goes with it.
_known: weakref.WeakKeyDictionary[Callable[..., Any], Declared] = weakref.WeakKeyDictionary()
_methods: weakref.WeakKeyDictionary[Callable[..., Any], Declared] = weakref.WeakKeyDictionary()


def _look(function: Callable[..., Any]) -> Declared:
    try:
        hints = typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    except (NameError, TypeError, AttributeError):
        # A name that exists only for type checkers: the value is then taken for what it is.
        hints = {}
    signature = inspect.signature(function)
    annotations = {
        name: Any if parameter.kind in _SPREAD else hints.get(name, Any)
        for name, parameter in signature.parameters.items()
    }
    return Declared(signature, annotations)
