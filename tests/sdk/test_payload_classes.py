"""Classes as payloads: dataclasses, structs, TypedDicts and NamedTuples in all their variations."""

from __future__ import annotations

import functools
import json
from dataclasses import InitVar, dataclass, field
from datetime import datetime
from typing import Any, Generic, NamedTuple, NotRequired, TypedDict, TypeVar
from uuid import UUID, uuid4

import msgspec
import pytest

from kagzi.sdk.errors import PayloadError
from kagzi.sdk.payload import Payload, decode, encode
from tests.sdk import annotated
from tests.sdk.annotated import same

T = TypeVar("T")
U = TypeVar("U")


@dataclass
class Node:
    name: str
    children: list[Node] = field(default_factory=list)
    parent_id: UUID | str | None = None


class Link(NamedTuple):
    value: int
    rest: Link | None = None


@dataclass
class Box(Generic[T]):
    content: T
    more: list[T] = field(default_factory=list)


@dataclass
class Pair(Box[T], Generic[T, U]):
    second: U | None = None


@dataclass
class Numbers(Box[int]):
    pass


@dataclass
class Stamped:
    name: str
    id: UUID = field(init=False)
    calls: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.id = uuid4()


@dataclass
class Checked:
    cents: int

    def __post_init__(self) -> None:
        if self.cents < 0:
            raise ValueError("cents must not be negative")


@dataclass
class Growing:
    cents: int

    def __post_init__(self) -> None:
        self.cents *= 100


@dataclass
class Seeded:
    value: int
    seed: InitVar[int]

    def __post_init__(self, seed: int) -> None:
        self.value += seed


@dataclass(init=False)
class HandMade:
    size: int

    def __init__(self, width: int, height: int) -> None:
        self.size = width * height


@dataclass(frozen=True, slots=True, kw_only=True)
class Strict:
    a: int
    b: str = "b"


@dataclass
class Animal:
    name: str


@dataclass
class Dog(Animal):
    tricks: int = 0


class Cat(msgspec.Struct, tag=True, rename="camel"):
    life_count: int
    friend: UUID | str = ""


class Bird(msgspec.Struct, tag="bird"):
    wings: int = 2


class Fish(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    length: float
    scales: int | msgspec.UnsetType = msgspec.UNSET


class Filled(msgspec.Struct):
    total: int

    def __post_init__(self) -> None:
        if self.total > 10:
            raise ValueError("too full")


class Settings(TypedDict):
    name: str
    limit: NotRequired[int]
    since: NotRequired[datetime | str]


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (Node("a", [Node("b", [Node("c")]), Node("d", parent_id=uuid4())]), Node),
        (Link(1, Link(2, None)), Link),
        (Box(1, [2]), Box[int]),
        (Box(uuid4()), Box[UUID]),
        (Box("x"), Box),
        (Box(Strict(a=1)), Box[Strict]),
        (Pair(1, [2], "x"), Pair[int, str]),
        (Pair(uuid4(), [], "x"), Pair[UUID | str, str]),
        (Numbers(1, [2]), Numbers),
        ([Box(1), Box("x")], list[Box[int] | Box[str]]),
        (Stamped("a"), Stamped),
        (Checked(5), Checked),
        (HandMade(2, 3), HandMade),
        (Strict(a=1, b="c"), Strict),
        (Dog("rex", 3), Dog),
        ([Dog("rex", 3), Animal("ant")], list[Animal | Dog]),
        (Cat(9, uuid4()), Cat),
        ([Cat(9), Bird()], list[Cat | Bird]),
        (Fish(1.5), Fish),
        (Fish(1.5, 7), Fish),
        (Filled(3), Filled),
        ({"name": "a"}, Settings),
        ({"limit": 3, "name": "a", "since": datetime(2025, 1, 1)}, Settings),  # noqa: DTZ001 - naive on purpose
    ],
)
def test_classes_come_back_as_they_were(value: Any, annotation: Any) -> None:
    assert same(decode(encode(value, annotation), annotation), value)


def test_rebuilding_runs_the_checks_of_the_class_for_what_comes_from_elsewhere() -> None:
    with pytest.raises(PayloadError, match=r"Checked at \$: Checked refused it: ValueError: cents must not be"):
        decode(Payload(b'{"cents":-1}'), Checked)
    with pytest.raises(PayloadError, match="too full"):
        decode(Payload(b'{"total":11}'), Filled)


def test_a_class_that_changes_its_fields_whenever_it_is_built_is_refused_before_it_is_stored() -> None:
    with pytest.raises(PayloadError, match="gives another 'cents'"):
        encode(Growing(5), Growing)


def test_a_class_that_cannot_be_built_from_its_fields_is_refused_before_it_is_stored() -> None:
    with pytest.raises(PayloadError, match=r"cannot be rebuilt from its own fields: TypeError: .*'seed'"):
        encode(Seeded(1, 2), Seeded)


def test_a_subclass_is_refused_where_its_base_is_declared_because_it_would_lose_its_fields() -> None:
    with pytest.raises(PayloadError, match=r"\$\[1\]: found a Dog where Animal is declared"):
        encode([Animal("ant"), Dog("rex")], list[Animal])


def test_what_is_no_field_is_not_part_of_the_payload() -> None:
    @dataclass
    class Circle:
        radius: int

        @functools.cached_property
        def area(self) -> float:
            return 3.14 * self.radius**2

    circle = Circle(2)
    assert circle.area
    assert encode(circle, Circle).data == b'{"radius":2}'


def test_a_key_that_a_typed_dict_does_not_declare_is_refused_because_it_would_be_lost() -> None:
    with pytest.raises(PayloadError, match=r"Settings does not declare \.limits"):
        encode({"name": "a", "limits": 1}, Settings)
    with pytest.raises(PayloadError, match="the key 'name' of Settings is missing"):
        encode({"limit": 1}, Settings)


def test_structs_are_written_under_their_own_names_and_tags() -> None:
    assert json.loads(encode(Cat(9), Cat).data) == {"type": "Cat", "lifeCount": 9, "friend": ""}
    assert json.loads(encode(Fish(1.5), Fish).data) == {"length": 1.5}
    assert decode(Payload(b'{"type":"bird","wings":3}'), Cat | Bird) == Bird(3)
    with pytest.raises(PayloadError, match="does not declare"):
        decode(Payload(b'{"length":1.0,"depth":2}'), Fish)


def test_two_classes_of_one_name_are_told_apart_by_their_modules() -> None:
    color: Any = type("Color", (), {"__annotations__": {"red": int}, "__module__": __name__})
    here: Any = dataclass(color)
    union = here | annotated.Color
    assert decode(encode(here(1), union), union) == here(1)
    assert decode(encode(annotated.Color.RED, union), union) is annotated.Color.RED


def test_a_class_named_like_a_type_of_python_is_not_taken_for_it() -> None:
    other: Any = dataclass(type("UUID", (), {"__annotations__": {"value": str}, "__module__": __name__}))
    union = other | UUID | str
    identity = uuid4()
    for value in (other("x"), identity, "x"):
        assert decode(encode(value, union), union) == value


def test_annotations_that_cannot_be_read_are_refused_with_the_reason() -> None:
    @dataclass
    class Lost:
        item: Missing  # type: ignore[name-defined]  # noqa: F821 - it does not exist

    with pytest.raises(PayloadError, match="annotations of Lost cannot be read: name 'Missing' is not defined"):
        encode(1, Lost)


def test_a_deleted_field_is_named() -> None:
    animal = Animal("ant")
    del animal.name
    with pytest.raises(PayloadError, match="the field 'name' of Animal is not set"):
        encode(animal, Animal)
