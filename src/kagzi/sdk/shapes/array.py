"""Shapes that become JSON arrays: lists, tuples, sets, and tuples with a type for each place."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from kagzi.sdk.shapes.shape import Misfit, Shape, each


class Array(Shape):
    """Any number of items of one shape: `list`, `tuple[X, ...]`, `set`, `frozenset`."""

    __slots__ = ("cls", "item", "native", "natural")
    kinds = frozenset(["array"])

    def __init__(self, cls: type, item: Shape) -> None:
        self.name = f"tuple[{item.name}, ...]" if cls is tuple else f"{cls.__name__}[{item.name}]"
        self.cls: Any = cls
        self.item = item
        self.natural = cls is list
        # Sets are sorted before they are written: their own order differs between processes.
        self.native = cls in (list, tuple)

    def parts(self) -> Iterable[Shape]:
        return (self.item,)

    def fits(self, value: Any) -> bool:
        return type(value) is self.cls and self.item.all_fit(value)

    def lower(self, value: Any) -> Any:
        if type(value) is not self.cls:
            raise self.misplaced(value)
        items = each(self.item.lower, value)
        if not self.native:
            items.sort(key=msgspec.json.encode)
        return items

    def lift(self, plain: Any) -> Any:
        plain = self.unwrapped(plain)
        if type(plain) is not list:
            raise self.unreadable(plain)
        items = each(self.item.lift, plain)
        if self.cls is list:
            return items
        try:
            return self.cls(items)
        except TypeError:
            raise Misfit(f"{self.item.name} cannot be in a set: it is not hashable") from None


class Row(Shape):
    """A place for each item: `tuple[int, str]`, `tuple[()]`, or a NamedTuple."""

    __slots__ = ("_fewest", "_labels", "cls", "items")
    kinds = frozenset(["array"])
    native = True

    def __init__(self, name: str, cls: type) -> None:
        self.name = name
        self.cls: Any = cls
        self.items: tuple[Shape, ...] = ()

    def define(self, items: Sequence[Shape], labels: Sequence[str] = (), defaults: int = 0) -> None:
        """The second half of the constructor: a NamedTuple may hold others of its own type."""
        self.items = tuple(items)
        self._labels = [f".{label}" for label in labels] or [f"[{place}]" for place in range(len(items))]
        self._fewest = len(items) - defaults

    def parts(self) -> Iterable[Shape]:
        return self.items

    def fits(self, value: Any) -> bool:
        return (
            type(value) is self.cls
            and len(value) == len(self.items)
            and all(shape.fits(item) for shape, item in zip(self.items, value, strict=True))
        )

    def lower(self, value: Any) -> Any:
        if type(value) is not self.cls:
            raise self.misplaced(value)
        if len(value) != len(self.items):
            raise Misfit(f"found a tuple of {len(value)} where {self.name} is declared")
        return self._each("lower", value)

    def lift(self, plain: Any) -> Any:
        plain = self.unwrapped(plain)
        if type(plain) is not list:
            raise self.unreadable(plain)
        if not self._fewest <= len(plain) <= len(self.items):
            raise Misfit(f"expected {self.name}, found an array of {len(plain)}")
        items = self._each("lift", plain)
        return tuple(items) if self.cls is tuple else self.cls(*items)

    def _each(self, way: str, values: Iterable[Any]) -> list[Any]:
        out = []
        for shape, label, value in zip(self.items, self._labels, values, strict=False):
            try:
                out.append(getattr(shape, way)(value))
            except Misfit as misfit:
                raise misfit.within(label) from None
        return out
