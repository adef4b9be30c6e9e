"""What payloads look like as JSON, and what is read from JSON that was written elsewhere."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from typing import Annotated, Any, Literal, NewType, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from rich.pretty import pretty_repr
from typing_extensions import TypeAliasType

from kagzi.sdk import payload
from kagzi.sdk.errors import PayloadError
from kagzi.sdk.payload import Payload, decode, encode
from tests.sdk.annotated import same

SOME_ID = UUID("12345678-1234-5678-1234-567812345678")
BERLIN = ZoneInfo("Europe/Berlin")


class Color(Enum):
    RED = "red"


class Shade(Enum):
    PAIR = (1, 2)


class Rights(Flag):
    READ = 1
    WRITE = 2


@dataclass
class Card:
    number: str


@dataclass
class Voucher:
    number: str


@dataclass
class Cash:
    cents: int
    currency: str = "EUR"


class Point(TypedDict):
    x: int
    y: int


UserId = NewType("UserId", int)
Tree = TypeAliasType("Tree", "int | list[Tree]")
Nested = TypeAliasType("Nested", "tuple[Nested | str, ...] | None")


def written(value: Any, annotation: Any = None) -> Any:
    return json.loads(encode(value, annotation).data)


def read(data: Any, annotation: Any = None) -> Any:
    return decode(Payload(json.dumps(data).encode()), annotation)


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (None, type(None), None),
        ({"a": [1, 2.5, True, None, "x"]}, dict, {"a": [1, 2.5, True, None, "x"]}),
        (Card("42"), Card, {"number": "42"}),
        (Card("42"), Card | None, {"number": "42"}),
        (None, Card | None, None),
        ({"x": 1, "y": 2}, Point, {"x": 1, "y": 2}),
        (SOME_ID, UUID, str(SOME_ID)),
        (SOME_ID, UUID | int | None, str(SOME_ID)),
        (Decimal("1.10"), Decimal, "1.10"),
        (b"\xff\x00", bytes, "/wA="),
        (datetime(2025, 1, 2, tzinfo=UTC), datetime, "2025-01-02T00:00:00Z"),
        (datetime(2025, 1, 2, tzinfo=ZoneInfo("UTC")), datetime, "2025-01-02T00:00:00Z"),
        (datetime(2025, 1, 2, tzinfo=BERLIN), datetime, "2025-01-02T00:00:00+01:00[Europe/Berlin]"),
        (time(1, 2, tzinfo=BERLIN), time, "01:02:00[Europe/Berlin]"),
        (date(2025, 1, 2), date, "2025-01-02"),
        (timedelta(hours=1), timedelta, "PT3600S"),
        (Color.RED, Color, "red"),
        (Shade.PAIR, Shade, "PAIR"),
        (Rights.READ | Rights.WRITE, Rights, 3),
        ((1, "a"), tuple[int, str], [1, "a"]),
        ({3, 1, 2}, set[int], [1, 2, 3]),
        ({1: "a"}, dict[int, str], {"1": "a"}),
        ({SOME_ID: 1}, dict[UUID, int], {str(SOME_ID): 1}),
        ({(1, 2): "a"}, dict[tuple[int, int], str], [[[1, 2], "a"]]),
        (UserId(5), UserId, 5),
        ([1, [2]], Tree, [1, [2]]),
        (3, float, 3.0),
    ],
)
def test_json_stays_plain_where_the_annotation_says_enough(value: Any, annotation: Any, expected: Any) -> None:
    assert written(value, annotation) == expected
    assert decode(encode(value, annotation), annotation) == value


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        ("text", str | UUID, "text"),
        (SOME_ID, str | UUID, {"$kagzi": "UUID", "value": str(SOME_ID)}),
        (Card("42"), Card | Cash, {"$kagzi": "Card", "number": "42"}),
        ([Card("42")], list[Card | Voucher], [{"$kagzi": "Card", "number": "42"}]),
        ({"a": 1}, Card | dict[str, int], {"a": 1}),
        (Card("42"), Card | dict[str, int], {"$kagzi": "Card", "number": "42"}),
        ([1], list[int] | tuple[int, ...], [1]),
        ((1,), list[int] | tuple[int, ...], {"$kagzi": "tuple[int, ...]", "value": [1]}),
        ((1,), Sequence[int], {"$kagzi": "tuple[int, ...]", "value": [1]}),
        ([1], Sequence[int], [1]),
        (frozenset([1]), AbstractSet[int], {"$kagzi": "frozenset[int]", "value": [1]}),
        ({"a": 1}, Mapping[str, int], {"a": 1}),
        (Color.RED, Color | str, {"$kagzi": "Color", "value": "red"}),
        ("red", Color | str, "red"),
        ("a", Literal["a"] | UUID, "a"),
        ("b", Literal["a"] | str, "b"),  # noqa: PYI051 - people write it for completion in editors
        (5, Literal[1] | int | None, 5),  # noqa: PYI051 - as above
        (True, Literal[1, True] | str, True),
        ({"$kagzi": "Card"}, dict[str, str], {"$kagzi": "dict", "value": {"$kagzi": "Card"}}),
        ((None, "x"), Nested, [{"$kagzi": "Nested", "value": None}, "x"]),
    ],
)
def test_a_tag_is_written_only_where_more_than_one_reading_is_possible(
    value: Any, annotation: Any, expected: Any
) -> None:
    assert written(value, annotation) == expected
    assert same(decode(encode(value, annotation), annotation), value)


def test_the_order_of_a_unions_members_does_not_matter() -> None:
    for value in ([1], ["a"], []):
        assert encode(value, list[int] | list[str]) == encode(value, list[str] | list[int])
        assert decode(encode(value, list[int] | list[str]), list[str] | list[int]) == value


def test_values_without_a_declaration_say_what_they_are_beyond_json() -> None:
    value = {"when": datetime(2025, 1, 2, tzinfo=UTC), "pair": (1, SOME_ID), 5: b"x"}
    assert written({"when": date(2025, 1, 2)}) == {"when": {"$kagzi": "date", "value": "2025-01-02"}}
    assert same(decode(encode(value)), value)
    assert same(decode(encode(value, Any), Any), value)


def test_a_key_that_looks_like_a_tag_is_only_a_key() -> None:
    for value in ({"$kagzi": "Card", "number": "1"}, [{"$kagzi": "UUID", "value": "x"}], {"$kagzi": None}):
        for annotation in (None, Any, object):
            assert decode(encode(value, annotation), annotation) == value


def test_what_was_sent_without_a_declaration_is_read_by_the_receivers() -> None:
    class Order(TypedDict):
        id: UUID
        due: datetime
        lines: tuple[int, ...]
        by_id: dict[int, str]

    order = {"id": SOME_ID, "due": datetime(2025, 1, 2, tzinfo=UTC), "lines": (1, 2), "by_id": {1: "a"}}
    assert same(decode(encode(order), Order), order)
    assert decode(encode(Card("42")), Card) == Card("42")
    assert decode(encode(Voucher("42")), Card | Voucher) == Voucher("42")
    assert decode(encode(Color.RED), Color) is Color.RED


def test_a_class_of_another_name_is_accepted_by_a_receiver_that_expects_one() -> None:
    assert decode(encode(Voucher("42")), Card) == Card("42")


def test_a_reader_without_any_declaration_sees_a_class_as_its_fields() -> None:
    assert decode(encode(Card("42"))) == {"number": "42"}
    assert decode(encode([Card("42"), Cash(1)], list[Card | Cash])) == [
        {"number": "42"},
        {"cents": 1, "currency": "EUR"},
    ]
    assert decode(encode(Color.RED)) == "red"
    with pytest.raises(PayloadError, match="found a Card, and nothing says what that is"):
        decode(encode(Card("42")), Any)


def test_an_instance_declared_as_any_is_refused_because_it_could_not_come_back() -> None:
    with pytest.raises(PayloadError, match=r"\$\.cards\[0\].*Annotate .* with Card"):
        encode({"cards": [Card("42")]}, dict[str, Any])


def test_untagged_json_from_elsewhere_is_read_where_one_member_fits() -> None:
    assert read({"cents": 5}, Card | Cash) == Cash(5)
    assert read({"number": "1"}, Card | Cash) == Card("1")
    assert read(str(SOME_ID), datetime | UUID) == SOME_ID
    assert read("2025-01-02T00:00:00Z", datetime | UUID) == datetime(2025, 1, 2, tzinfo=UTC)
    assert read({"$kagzi": "Voucher", "number": "1"}, Card | Voucher) == Voucher("1")


def test_untagged_json_that_fits_two_members_is_refused_with_the_way_out() -> None:
    with pytest.raises(PayloadError, match=r"may be Card or Voucher\. Say which with a key '\$kagzi'"):
        read({"number": "1"}, Card | Voucher)


def test_a_renamed_class_is_never_taken_for_another_of_the_same_form() -> None:
    with pytest.raises(PayloadError, match="may be Card or Voucher"):
        read({"$kagzi": "OldName", "number": "1"}, Card | Voucher)
    assert read({"$kagzi": "OldName", "cents": 1}, Card | Cash) == Cash(1)


def test_fields_can_come_and_go_while_payloads_live_on() -> None:
    assert read({"cents": 1, "gone": True}, Cash) == Cash(1, "EUR")
    assert read({"number": "1"}, Card | Cash | None) == Card("1")


def test_bounds_of_msgspec_meta_are_checked_on_reading() -> None:
    positive = Annotated[int, msgspec.Meta(gt=0)]
    assert decode(encode(5, positive), positive) == 5
    for annotation, data in ((positive, 0), (list[positive] | set[str], [0]), (dict[tuple[int], positive], [[[1], 0]])):
        with pytest.raises(PayloadError, match=r"> 0|expected|Expected"):
            read(data, annotation)


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2025, 10, 26, 2, 30, tzinfo=BERLIN),
        datetime(2025, 10, 26, 2, 30, tzinfo=BERLIN, fold=1),
        datetime(2025, 3, 30, 2, 30, tzinfo=BERLIN),
        datetime(2025, 3, 30, 2, 30, tzinfo=BERLIN, fold=1),
        datetime(1880, 1, 1, tzinfo=BERLIN),
        datetime(2025, 1, 1, tzinfo=timezone(timedelta(seconds=-61))),
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    ],
    ids=str,
)
def test_moments_keep_their_zone_and_which_of_the_doubled_hours_they_are_in(moment: datetime) -> None:
    twin = decode(encode(moment, datetime), datetime)
    assert same(twin, moment)
    assert twin.utcoffset() == moment.utcoffset()
    assert twin + timedelta(0) == moment + timedelta(0)


def test_a_zone_that_this_machine_does_not_know_is_named_as_the_problem() -> None:
    with pytest.raises(PayloadError, match="tzdata"):
        read("2025-01-01T00:00:00+01:00[Mars/Olympus]", datetime)
    with pytest.raises(PayloadError):
        read("2025-01-01T00:00:00+01:00[../../etc/passwd]", datetime)
    with pytest.raises(PayloadError):
        read("2025-01-01T00:00:00+01:00[Europe]", datetime)


def test_decimals_keep_digits_sign_and_special_values() -> None:
    for text in ("1.10", "-0", "1E+5", "Infinity", "NaN", "1" * 50):
        assert str(decode(encode(Decimal(text), Decimal), Decimal)) == text


def test_large_integers_are_exact() -> None:
    for value in (2**64, -(2**200), 10**4000 - 1):
        assert decode(encode(value, int), int) == value
        assert decode(encode({"n": value})) == {"n": value}


def test_a_payload_never_shows_its_data() -> None:
    assert repr(encode("secret", str)) == "Payload(8 bytes, json)"
    assert pretty_repr(encode("secret", str)) == "Payload(size=8, encoding='json')"


def test_a_payload_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        encode(1, int).data = b"2"  # type: ignore[misc]


def test_two_values_that_are_equal_are_written_as_equal_bytes_in_every_process() -> None:
    code = (
        "from kagzi.sdk.payload import encode\n"
        "print(encode({'b','a','c','d','e'}, set[str]).data, encode({'x': {'q', 'r', 's'}}).data)"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1


def test_plans_are_made_once_for_an_annotation_and_not_kept_for_ever() -> None:
    assert payload.plan(list[int]) is not None
    annotation = list[str]
    assert payload.plan(annotation) is payload.plan(annotation)
    for _ in range(payload._MOST_PLANS + 10):
        payload.plan(list[int])
    assert len(payload._plans) <= payload._MOST_PLANS


def test_payloads_work_without_pydantic() -> None:
    code = (
        "import sys\nsys.modules['pydantic'] = None\n"
        "from dataclasses import dataclass\nfrom uuid import UUID\nfrom kagzi.sdk.payload import decode, encode\n"
        "@dataclass\nclass A:\n    id: UUID | str\n"
        "assert decode(encode(A('x'), A | None), A | None) == A('x')\n"
        "try: encode(object())\nexcept Exception as error: print(type(error).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "PayloadError\n"


def test_importing_payloads_does_not_load_pydantic_or_cryptography() -> None:
    code = (
        "import sys, kagzi.sdk.payload, kagzi.sdk.codec, kagzi.sdk.encryption\n"
        "print([name for name in ('pydantic', 'cryptography', 'asyncpg', 'grpc') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
