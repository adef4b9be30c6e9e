"""The shape of a value whose annotation says nothing: `Any`, `object`, a bare `list`, or none at all.

Plain JSON values stay as they are. What Python has beyond them (datetime, UUID, Decimal, bytes, tuples, sets,
dicts with other keys) is tagged, so it comes back as it was. An instance of a class needs the reader to know
the class: declared as `Any` it is refused; where no declaration is known at all (a run started or signalled
by name) it is written with its class's name, and a reader who does not know better either gets its fields as
a dict.
"""

import math
from collections.abc import Callable, Collection
from datetime import datetime, time
from typing import Any

from kagzi.sdk.shapes.array import Array
from kagzi.sdk.shapes.atom import EXACT, Exact, Real
from kagzi.sdk.shapes.mapping import Mapping
from kagzi.sdk.shapes.moment import Moment
from kagzi.sdk.shapes.shape import KINDS, TAG, VALUE, Misfit, Shape, article

_SCALARS: frozenset[type] = frozenset([str, int, bool, type(None)])
_NESTED: frozenset[type] = frozenset([float, list, dict])


class Anything(Shape):
    """`declared` says that somebody wrote `Any`; `resolve` finds the shape of a class, or raises Misfit."""

    __slots__ = ("_by_tag", "_declared", "_plain", "_resolve", "_tagged")
    kinds = frozenset(KINDS.values())
    natural = native = takes_all = True

    def __init__(self, resolve: Callable[[type], Shape], *, declared: bool = True) -> None:
        self.name = "Any"
        self._resolve = resolve
        self._declared = declared
        exact: dict[type, Shape] = {cls: Exact(cls) for cls in EXACT}
        self._plain = {cls: exact.pop(cls) for cls in _SCALARS}
        self._plain |= {float: Real(), list: Array(list, self), dict: Mapping(self, self)}
        self._tagged = exact | {cls: Array(cls, self) for cls in (tuple, set, frozenset)}
        self._tagged |= {datetime: Moment(datetime), time: Moment(time)}
        self._by_tag = {cls.__name__: shape for cls, shape in (self._tagged | self._plain).items()}

    def fits(self, value: Any) -> bool:
        cls = type(value)
        if cls in _SCALARS:
            return True
        if cls is dict:
            return set(map(type, value)) <= {str} and TAG not in value and self.all_fit(value.values())
        if cls is list:
            return self.all_fit(value)
        return cls is float and math.isfinite(value)

    def all_fit(self, values: Collection[Any]) -> bool:
        nested = set(map(type, values)) - _SCALARS
        return not nested or (
            nested <= _NESTED and all(self.fits(value) for value in values if type(value) not in _SCALARS)
        )

    def lower(self, value: Any) -> Any:
        cls = type(value)
        if shape := self._plain.get(cls):
            return shape.lower(value)
        if shape := self._tagged.get(cls):
            return {TAG: cls.__name__, VALUE: shape.lower(value)}
        shape = self._resolved(cls)
        if self._declared:
            raise Misfit(
                f"found {article(cls.__name__)}, which only a reader who knows the class can rebuild. "
                f"Annotate the parameter, the field or what the function returns with {cls.__name__}"
            )
        return tagged(shape, value)

    def lift(self, plain: Any) -> Any:
        if type(plain) is list:
            return self._plain[list].lift(plain)
        if type(plain) is not dict:
            return plain
        tag = plain.get(TAG)
        if type(tag) is not str:
            return self._plain[dict].lift(plain)
        if VALUE in plain and (shape := self._by_tag.get(tag)):
            return shape.lift(plain)
        if self._declared:
            raise Misfit(f"found {article(tag)}, and nothing says what that is. Annotate what is expected here")
        rest = {key: item for key, item in plain.items() if key != TAG}
        return self.lift(rest[VALUE]) if rest.keys() == {VALUE} else self._plain[dict].lift(rest)

    def _resolved(self, cls: type) -> Shape:
        try:
            return self._resolve(cls)
        except Misfit:
            for base in cls.__mro__[1:]:
                if base in self._plain or base in self._tagged:
                    name = base.__name__
                    raise Misfit(
                        f"found {article(cls.__name__)}, which would come back as {name}. Convert it with {name}(...)"
                    ) from None
            raise


def tagged(shape: Shape, value: Any, tag: str = "") -> dict[str, Any]:
    """`value` as JSON that says what it is."""
    lowered = shape.lower(value)
    label = {TAG: tag or shape.name}
    return label | lowered if shape.inline else {**label, VALUE: lowered}
