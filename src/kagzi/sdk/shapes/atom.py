"""Shapes of single values: what has no parts and becomes one JSON scalar."""

import math
import sys
from collections.abc import Collection, Sequence
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Any, Literal
from uuid import UUID

import msgspec

from kagzi.sdk.shapes.shape import KINDS, Misfit, Shape, article, type_name

# Python itself refuses to print longer integers unless a process asks for it.
LONGEST_INTEGER = 4_000

EXACT: dict[type, str] = {
    type(None): "null",
    bool: "bool",
    int: "int",
    str: "str",
    bytes: "str",
    date: "str",
    timedelta: "str",
    UUID: "str",
    Decimal: "str",
}


class Exact(Shape):
    """A type that msgspec writes and reads without loss: None, bool, int, str, bytes, date, UUID ..."""

    __slots__ = ("cls", "kinds", "natural")
    native = True

    def __init__(self, cls: type) -> None:
        self.name = type_name(cls)
        self.cls: Any = cls
        self.kinds = frozenset([EXACT[cls]])
        self.natural = cls in KINDS

    @staticmethod
    def covers(annotation: Any) -> bool:
        return isinstance(annotation, type) and annotation in EXACT

    def fits(self, value: Any) -> bool:
        return type(value) is self.cls

    def all_fit(self, values: Collection[Any]) -> bool:
        return set(map(type, values)) <= {self.cls}

    def lower(self, value: Any) -> Any:
        if type(value) is not self.cls:
            raise self.misplaced(value)
        if self.cls is str:
            try:
                value.encode()
            except UnicodeEncodeError:
                raise Misfit("the text holds half of a surrogate pair, which is no character. Clean it") from None
        elif self.cls is int and value.bit_length() > LONGEST_INTEGER * math.log2(10):
            raise Misfit(f"the integer has more than {LONGEST_INTEGER} digits. Pass it as bytes or hex text")
        return value

    def lift(self, plain: Any) -> Any:
        try:
            return msgspec.convert(self.unwrapped(plain), self.cls)
        except msgspec.ValidationError:
            raise self.unreadable(plain) from None


class Real(Shape):
    """`float`: finite ones only, for JSON has no others. An int is promoted, as type checkers have it."""

    __slots__ = ()
    kinds = frozenset(["float"])
    natural = native = True

    def __init__(self) -> None:
        self.name = "float"

    def fits(self, value: Any) -> bool:
        return type(value) is float and math.isfinite(value)

    def all_fit(self, values: Collection[Any]) -> bool:
        return set(map(type, values)) <= {float} and all(map(math.isfinite, values))

    def lower(self, value: Any) -> Any:
        if type(value) is int and abs(value) <= sys.float_info.max:
            return float(value)
        if type(value) is not float:
            raise self.misplaced(value)
        if not math.isfinite(value):
            raise Misfit(f"JSON has no {value!r}. Use None, or Decimal, which has")
        return value

    def lift(self, plain: Any) -> Any:
        plain = self.unwrapped(plain)
        if type(plain) not in (int, float) or abs(plain) > sys.float_info.max:
            raise self.unreadable(plain)
        return float(plain)


class Enumeration(Shape):
    """An enum: by value where all values are text or all are integers, otherwise by the member's name."""

    __slots__ = ("_scalar", "cls", "kinds", "native")

    def __init__(self, cls: type[Enum]) -> None:
        self.name = cls.__name__
        self.cls: Any = cls
        types = {type(member.value) for member in cls}
        self._scalar = int if issubclass(cls, Flag) else types.pop() if types in ({str}, {int}) else None
        self.kinds = frozenset(["int" if self._scalar is int else "str"])
        self.native = self._scalar is not None and not issubclass(cls, Flag)

    def fits(self, value: Any) -> bool:
        return type(value) is self.cls

    def lower(self, value: Any) -> Any:
        if type(value) is not self.cls:
            raise self.misplaced(value)
        return value.value if self._scalar else value.name

    def lift(self, plain: Any) -> Any:
        plain = self.unwrapped(plain)
        if type(plain) is not (self._scalar or str):
            raise self.unreadable(plain)
        try:
            return self.cls(plain) if self._scalar else self.cls[plain]
        except (ValueError, KeyError):
            raise Misfit(f"it is no {'value' if self._scalar else 'member'} of {self.name}") from None


class Choice(Shape):
    """A Literal of JSON scalars."""

    __slots__ = ("_known", "cls", "kinds", "native", "options")
    natural = True

    def __init__(self, options: Sequence[Any]) -> None:
        self.name = f"Literal[{', '.join(map(repr, options))}]"
        self.cls = Literal[tuple(options)]
        self.options = tuple(options)
        self._known = {(type(option), option) for option in options}
        self.kinds = frozenset(KINDS[type(option)] for option in options)
        self.native = "bool" not in self.kinds

    def fits(self, value: Any) -> bool:
        return type(value) in (str, int, bool, type(None)) and (type(value), value) in self._known

    def lower(self, value: Any) -> Any:
        if not self.fits(value):
            raise Misfit(f"found {article(type_name(type(value)))} that is none of {self.name}")
        return value

    def lift(self, plain: Any) -> Any:
        if not self.fits(plain):
            raise Misfit(f"it is none of {self.name}")
        return plain


class Constrained(Shape):
    """A single value with the bounds of a `msgspec.Meta`, which are checked when it is read."""

    __slots__ = ("_annotation", "kinds", "native", "natural", "shape")

    def __init__(self, shape: Shape, annotation: Any) -> None:
        self.name = shape.name
        self.kinds, self.natural, self.native = shape.kinds, shape.natural, shape.native
        self.shape = shape
        self._annotation = annotation

    def fits(self, value: Any) -> bool:
        return self.shape.fits(value)

    def lower(self, value: Any) -> Any:
        return self.shape.lower(value)

    def lift(self, plain: Any) -> Any:
        value = self.shape.lift(plain)
        try:
            return msgspec.convert(value, self._annotation)
        except msgspec.ValidationError as error:
            raise Misfit(str(error)) from None
