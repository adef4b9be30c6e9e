"""Hypothesis strategies for annotations together with their values, and a comparison that looks at types."""

import dataclasses
import itertools
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from functools import reduce
from operator import or_
from typing import Any, Literal, NamedTuple, NotRequired
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
from hypothesis import strategies as st
from typing_extensions import TypedDict

Values = st.SearchStrategy[Any]
Typed = tuple[Any, Values]
"""An annotation and the values it describes."""


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Mood(StrEnum):
    GOOD = "good"
    BAD = "bad"


class Mixed(Enum):
    TEXT = "1"
    NUMBER = 1
    PAIR = (1, 2)
    NOTHING = None


class Rights(Flag):
    READ = 1
    WRITE = 2
    SHARE = 4


_ZONES = [ZoneInfo(key) for key in ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC")]
_OFFSETS = st.timedeltas(timedelta(hours=-23), timedelta(hours=23))
_TIMEZONES = st.none() | st.just(UTC) | st.sampled_from(_ZONES) | _OFFSETS.map(timezone)
_numbers = itertools.count()

# As Any, because type checkers do not follow types that are made at run time.
_list: Any = list
_tuple: Any = tuple
_set: Any = set
_frozenset: Any = frozenset
_dict: Any = dict
_typed_dict_class: Any = TypedDict
_named_tuple_class: Any = NamedTuple


LEAVES: list[Typed] = [
    (type(None), st.none()),
    (bool, st.booleans()),
    (int, st.integers()),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (str, st.text(max_size=20)),
    (bytes, st.binary(max_size=20)),
    (datetime, st.datetimes(timezones=_TIMEZONES)),
    (date, st.dates()),
    (time, st.times(timezones=_TIMEZONES)),
    (timedelta, st.timedeltas()),
    (UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (Color, st.sampled_from(Color)),
    (Level, st.sampled_from(Level)),
    (Mood, st.sampled_from(Mood)),
    (Mixed, st.sampled_from(Mixed)),
    (Rights, st.sampled_from([Rights(bits) for bits in range(8)])),
    (Literal["a", 1, True] | None, st.sampled_from(["a", 1, True, None])),
]
LEAF = st.sampled_from(LEAVES)

_hashable = st.one_of(*(values for _, values in LEAVES))
ANYTHING: Values = st.recursive(
    st.one_of(*(values for annotation, values in LEAVES if not isinstance(annotation, type(Color)))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=5) | st.just("$kagzi") | st.integers(), inner, max_size=3),
    ),
    max_leaves=5,
)


def typed(depth: int = 2) -> st.SearchStrategy[Typed]:
    """Annotations up to `depth` levels deep."""
    if depth == 0:
        return LEAF
    inner = typed(depth - 1)
    some = st.lists(inner, min_size=1, max_size=3)
    hashable = LEAF | st.lists(LEAF, min_size=1, max_size=2).map(_fixed)
    return st.one_of(
        LEAF,
        st.just((Any, ANYTHING)),
        inner.map(lambda item: (_list[item[0]], st.lists(item[1], max_size=3))),
        inner.map(lambda item: (_tuple[item[0], ...], st.lists(item[1], max_size=3).map(tuple))),
        some.map(_fixed),
        hashable.map(lambda item: (_set[item[0]], st.sets(item[1], max_size=3))),
        hashable.map(lambda item: (_frozenset[item[0]], st.frozensets(item[1], max_size=3))),
        st.tuples(hashable, inner).map(
            lambda pair: (_dict[pair[0][0], pair[1][0]], st.dictionaries(pair[0][1], pair[1][1], max_size=3))
        ),
        inner.map(lambda item: (item[0] | None, st.none() | item[1]) if item[0] is not None else item),
        some.map(_union),
        some.map(_dataclass),
        some.map(_struct),
        some.map(_typed_dict),
        some.map(_named_tuple),
        some.map(_model),
        some.flatmap(
            lambda members: st.lists(_MAKERS, min_size=2, max_size=3).map(
                lambda makers: _union([make(members) for make in makers])
            )
        ),
    )


def _fixed(items: list[Typed]) -> Typed:
    return _tuple[tuple(annotation for annotation, _ in items)], st.tuples(*(values for _, values in items))


def _union(members: list[Typed]) -> Typed:
    annotations = [annotation for annotation, _ in members]
    return reduce(or_, annotations), st.one_of(*(values for _, values in members))


def _named(items: list[Typed], prefix: str) -> tuple[str, dict[str, Any], dict[str, Values]]:
    fields = {f"field_{place}": item for place, item in enumerate(items)}
    return (
        f"{prefix}{next(_numbers)}",
        {name: annotation for name, (annotation, _) in fields.items()},
        {name: values for name, (_, values) in fields.items()},
    )


def _dataclass(items: list[Typed]) -> Typed:
    name, hints, values = _named(items, "Data")
    cls = dataclasses.make_dataclass(name, list(hints.items()), frozen=True)
    return cls, st.builds(cls, **values)


def _struct(items: list[Typed]) -> Typed:
    name, hints, values = _named(items, "Struct")
    cls = msgspec.defstruct(name, list(hints.items()), rename="camel")
    return cls, st.builds(cls, **values)


def _typed_dict(items: list[Typed]) -> Typed:
    name, hints, values = _named(items, "Keys")
    cls = _typed_dict_class(name, {**hints, "extra": NotRequired[int]})
    return cls, st.fixed_dictionaries(values, optional={"extra": st.integers()})


def _named_tuple(items: list[Typed]) -> Typed:
    name, hints, values = _named(items, "Row")
    cls = _named_tuple_class(name, list(hints.items()))
    return cls, st.builds(cls, **values)


def _model(items: list[Typed]) -> Typed:
    name, hints, values = _named(items, "Model")
    config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    fields: dict[str, Any] = {key: (hint, ...) for key, hint in hints.items()}
    cls = pydantic.create_model(name, __config__=config, **fields)
    return cls, st.builds(cls, **values)


_MAKERS: st.SearchStrategy[Callable[[list[Typed]], Typed]] = st.sampled_from(
    [_dataclass, _struct, _typed_dict, _named_tuple, _model]
)


def same(left: Any, right: Any) -> bool:
    """Equal and of the same type, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            same(*keys) and same(left[keys[0]], right[keys[1]]) for keys in zip(left, right, strict=True)
        )
    if isinstance(left, set | frozenset):
        twins = {item: item for item in right}
        return left == right and all(same(item, twins[item]) for item in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if dataclasses.is_dataclass(left):
        return same(_attributes(left, left.__dataclass_fields__), _attributes(right, left.__dataclass_fields__))
    if isinstance(left, msgspec.Struct):
        return same(_attributes(left, left.__struct_fields__), _attributes(right, left.__struct_fields__))
    if isinstance(left, pydantic.BaseModel):
        return same(dict(left), dict(right))
    if isinstance(left, datetime):
        return left == right and left.utcoffset() == right.utcoffset() and _zone(left) == _zone(right)
    if isinstance(left, Decimal | float):
        return repr(left) == repr(right)
    return bool(left == right)


def _attributes(value: Any, names: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _zone(moment: datetime) -> str | None:
    zone = moment.tzinfo
    return zone.key if isinstance(zone, ZoneInfo) and zone.key != "UTC" else None
