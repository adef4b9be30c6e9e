"""The shape of a union: which members speak for themselves in JSON, and which need a tag.

For each kind of JSON value at most one member stays untagged: the natural one (`str` among text, `list` among
arrays, `dict` among objects), or the only one. All others are tagged. So `Card | None` and `int | UUID` are
plain, `str | UUID` tags the UUID, and `Card | Cash` tags both. Untagged JSON from elsewhere is still read
where exactly one member fits.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from kagzi.sdk.shapes.anything import tagged
from kagzi.sdk.shapes.record import Record
from kagzi.sdk.shapes.shape import KINDS, TAG, VALUE, Misfit, Shape


class Union(Shape):
    """Two or more shapes. `tags` gives members other names than their own where those would be mistaken."""

    __slots__ = ("_by_tag", "_order", "_plain", "_tags", "kinds", "members", "native")

    def __init__(self, members: Sequence[Shape], tags: Sequence[str]) -> None:
        self.name = " | ".join(member.name for member in members)
        self.members = tuple(members)
        self.kinds = frozenset().union(*(member.kinds for member in members))
        self._tags = {id(member): tag for member, tag in zip(members, tags, strict=True)}
        self._by_tag = {tag: member for member, tag in zip(members, tags, strict=True)}
        winners = {kind: _winner(kind, members) for kind in self.kinds}
        plain = [member for member in members if all(winners[kind] is member for kind in member.kinds)]
        self._plain = {kind: winner for kind, winner in winners.items() if winner in plain}
        # Plain members first: a value that fits two is then written without a tag.
        self._order = [*plain, *(member for member in members if member not in plain)]
        self.native = len(plain) == len(members)

    def parts(self) -> Iterable[Shape]:
        return self.members

    def fits(self, value: Any) -> bool:
        return any(member.fits(value) for member in self._order)

    def lower(self, value: Any) -> Any:
        for member in self._order:
            if member.fits(value):
                return self._written(member, value)
        nearest: Misfit | None = None
        for member in self._order:
            try:
                return self._written(member, value)
            except Misfit as misfit:
                if misfit.steps and (nearest is None or len(misfit.steps) > len(nearest.steps)):
                    nearest = misfit
        raise nearest or self.misplaced(value)

    def lift(self, plain: Any) -> Any:
        if type(plain) is dict and type(tag := plain.get(TAG)) is str and (member := self._by_tag.get(tag)):
            if member.inline:
                return member.lift(plain)
            if VALUE in plain:
                return member.lift(plain[VALUE])
        kind = KINDS.get(type(plain), "")
        if kind == "int" and kind not in self.kinds:
            kind = "float"
        winner = self._plain.get(kind)
        if winner is not None:
            try:
                return winner.lift(plain)
            except Misfit:
                if sum(kind in member.kinds for member in self.members) == 1:
                    raise
        return self._guessed(plain, kind)

    def _written(self, member: Shape, value: Any) -> Any:
        if any(member is plain for plain in self._plain.values()):
            return member.lower(value)
        return tagged(member, value, self._tags[id(member)])

    def _guessed(self, plain: Any, kind: str) -> Any:
        readings = []
        for member in self.members:
            if kind in member.kinds:
                try:
                    readings.append((member, member.lift(plain)))
                except Misfit:
                    continue
        exact = [reading for reading in readings if not (isinstance(reading[0], Record) and reading[0].surplus(plain))]
        for candidates in (exact, readings):
            if len(candidates) == 1:
                return candidates[0][1]
        if not readings:
            raise self.unreadable(plain)
        names = " or ".join(self._tags[id(member)] for member, _ in readings)
        raise Misfit(f"it may be {names}. Say which with a key {TAG!r}")


def _winner(kind: str, members: Sequence[Shape]) -> Shape | None:
    claims = [member for member in members if kind in member.kinds]
    natural = [member for member in claims if member.natural]
    if natural:
        # By name, not by order: `A | B` and `B | A` are the same type to Python.
        return min(natural, key=lambda member: (not member.takes_all, member.name))
    return claims[0] if len(claims) == 1 else None
