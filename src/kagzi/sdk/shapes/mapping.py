"""The shape of `dict`: a JSON object where its keys are text, otherwise an array of `[key, value]` pairs."""

from collections.abc import Callable, Iterable
from datetime import date
from typing import Any
from uuid import UUID

import msgspec

from kagzi.sdk.shapes.atom import Choice, Constrained, Enumeration, Exact
from kagzi.sdk.shapes.shape import TAG, VALUE, Misfit, Shape, each, key_step


class Mapping(Shape):
    """`dict[K, V]`. With `Any` as K it is an object when all keys are text, and tagged pairs when not."""

    __slots__ = ("_key", "_key_type", "_value", "kinds", "native", "natural")

    def __init__(self, key: Shape, value: Shape) -> None:
        self.name = f"dict[{key.name}, {value.name}]"
        self._key = key
        self._value = value
        self._key_type = str if key.takes_all else _text_type(key)
        self.kinds = frozenset(["object" if self._key_type else "array"])
        self.natural = self._key_type is str
        self.native = self._key_type is not None

    def parts(self) -> Iterable[Shape]:
        return (self._key, self._value)

    def fits(self, value: Any) -> bool:
        return (
            type(value) is dict and self._is_object(value) and TAG not in value and self._value.all_fit(value.values())
        )

    def lower(self, value: Any) -> Any:
        if type(value) is not dict:
            raise self.misplaced(value)
        if self._key.takes_all and not self._is_object(value):
            return {TAG: "dict", VALUE: self._lower_pairs(value)}
        if self._key_type is None:
            return self._lower_pairs(value)
        for key in value:
            _at(key, self._key.lower, key)
        out = {key: _at(key, self._value.lower, item) for key, item in value.items()}
        # A key that is spelled like a tag must not be taken for one.
        return {TAG: "dict", VALUE: out} if TAG in out else out

    def lift(self, plain: Any) -> Any:
        plain = self.unwrapped(plain)
        if type(plain) is list:
            return self._lift_pairs(plain)
        if type(plain) is not dict or self._key_type is None:
            raise self.unreadable(plain)
        out = {key: _at(key, self._value.lift, item) for key, item in plain.items()}
        if self._key_type is str:
            return out
        try:
            return msgspec.convert(out, dict[self._key_type, Any], str_keys=True)  # type: ignore[name-defined]
        except msgspec.ValidationError:
            raise Misfit(f"a key is not the text of {self._key.name}") from None

    def _is_object(self, value: dict[Any, Any]) -> bool:
        return set(map(type, value)) <= {str} if self._key_type is str else self._key.all_fit(value)

    def _lower_pairs(self, value: dict[Any, Any]) -> list[Any]:
        return [[_at(key, self._key.lower, key), _at(key, self._value.lower, item)] for key, item in value.items()]

    def _lift_pairs(self, pairs: list[Any]) -> dict[Any, Any]:
        if not all(type(pair) is list and len(pair) == 2 for pair in pairs):
            raise Misfit(f"expected {self.name} as an array of [key, value] pairs")
        keys = each(self._key.lift, [key for key, _ in pairs])
        values = each(self._value.lift, [item for _, item in pairs])
        try:
            return dict(zip(keys, values, strict=True))
        except TypeError:
            raise Misfit(f"{self._key.name} cannot be a key: it is not hashable") from None


def _text_type(key: Shape) -> Any:
    """The type of a key that JSON can spell as text and msgspec can read back from it; None for others."""
    if (isinstance(key, Exact) and key.cls in (str, int, UUID, date)) or (isinstance(key, Enumeration) and key.native):
        return key.cls
    if isinstance(key, Choice) and key.kinds == {"str"}:
        return key.cls
    return _text_type(key.shape) if isinstance(key, Constrained) else None


def _at(key: Any, convert: Callable[[Any], Any], item: Any) -> Any:
    try:
        return convert(item)
    except Misfit as misfit:
        raise misfit.within(key_step(key)) from None
