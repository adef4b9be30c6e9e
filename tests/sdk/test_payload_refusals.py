"""What cannot be encoded or decoded is said clearly: which type, where, and what to do."""

import collections
import io
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import datetime, tzinfo
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

import pytest

from kagzi.sdk.errors import PayloadError, retryable
from kagzi.sdk.payload import Payload, decode, encode


class Color(StrEnum):
    RED = "red"


class Weird(tzinfo):
    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


class Plain:
    pass


class Later:
    def __await__(self) -> Generator[None, None, None]:
        yield


@dataclass
class Line:
    sku: str
    price: Decimal


@dataclass
class Order:
    id: UUID
    lines: list[Line]
    note: str | None = None


def order(**changes: Any) -> dict[str, Any]:
    return {"id": "12345678-1234-5678-1234-567812345678", "lines": [{"sku": "a", "price": "1.5"}], **changes}


@pytest.mark.parametrize(
    ("value", "annotation", "path", "words"),
    [
        (Plain(), None, "$", "Plain has no encoded form. Use dataclasses"),
        ({"a": [1, {"b": Plain()}]}, None, "$.a[1].b", "Plain has no encoded form"),
        ({"a": threading.Lock()}, Any, "$.a", "lock has no encoded form"),
        (lambda: 1, Any, "$", "function has no encoded form"),
        (Later(), Any, "$", "Later has no encoded form. Write `await` before what makes it"),
        (Later(), str, "$", "found a Later where str is declared. Write `await` before what makes it"),
        ([iter(b"ab")], None, "$[0]", "bytes_iterator has no encoded form. Return a list of what it yields"),
        ((n for n in "ab"), list[str], "$", "where list[str] is declared. Return a list of what it yields"),
        (io.BytesIO(), None, "$", "BytesIO has no encoded form"),
        (1j, None, "$", "complex has no encoded form"),
        (ValueError("x"), Any, "$", "ValueError has no encoded form"),
        (iter([1]), list[int], "$", "found a list_iterator where list[int] is declared"),
        (collections.OrderedDict(), Any, "$", "would come back as dict. Convert it with dict(...)"),
        (collections.Counter("a"), dict[str, int], "$", "found a Counter where dict[str, int] is declared"),
        (Color.RED, Any, "$", "Annotate"),
        (Color.RED, str, "$", "found a Color where str is declared"),
        (True, int, "$", "found a bool where int is declared"),
        (True, float, "$", "found a bool where float is declared"),
        (5, str, "$", "found an int where str is declared"),
        (None, int, "$", "found None where int is declared"),
        ("x", datetime, "$", "found a str where datetime is declared"),
        ([1, "2"], list[int], "$[1]", "found a str where int is declared"),
        ({"a": 1, 2: 3}, dict[str, int], "$[...]", "found an int where str is declared"),
        ((1, 2, 3), tuple[int, int], "$", "a tuple of 3"),
        ([1], tuple[int, ...], "$", "found a list where tuple[int, ...] is declared"),
        (Plain(), int | str | None, "$", "found a Plain where int | str | None is declared"),
        (Order(UUID(int=1), [Line("a", 1.5)]), Order, "$.lines[0].price", "found a float where Decimal"),  # type: ignore[arg-type]
        (Order(UUID(int=1), [Line("a", 1.5)]), Order | None, "$.lines[0].price", "found a float"),  # type: ignore[arg-type]
        (float("nan"), float, "$", "JSON has no nan"),
        ([1.0, float("inf")], list[float], "$[1]", "JSON has no inf"),
        ({"a": {"b": float("-inf")}}, None, "$.a.b", "JSON has no -inf"),
        (10**400, float, "$", "found an int where float"),
        ("\ud800", str, "$", "half of a surrogate pair"),
        ({"a": ["\udfff"]}, dict, "$.a[0]", "half of a surrogate pair"),
        ({"\ud800": 1}, dict[str, int], "$[...]", "half of a surrogate pair"),
        ([10**5000], list[int], "$[0]", "more than 4000 digits"),
        (datetime(2025, 1, 1, tzinfo=Weird()), datetime, "$", "tzinfo without an offset"),
        (1, Callable[[], int], "$", "has no encoded form"),
        (1, "Order", "$", "is text"),
        (1, list["Order"], "$", "is text"),
        (Plain(), Plain, "$", "Plain has no encoded form"),
        (1, dict[str, list[Plain]], "$", "Plain has no encoded form"),
    ],
)
def test_what_cannot_be_encoded_is_named_with_its_path(value: Any, annotation: Any, path: str, words: str) -> None:
    with pytest.raises(PayloadError) as refused:
        encode(value, annotation)
    assert refused.value.path == path
    assert words in str(refused.value)
    assert f" at {path}: " in str(refused.value)
    assert not retryable(refused.value)


def test_a_value_that_contains_itself_is_refused() -> None:
    knot: list[Any] = []
    knot.append(knot)
    for annotation in (None, Any, list[list[Any]]):
        with pytest.raises(PayloadError, match="nests too deeply or contains itself"):
            encode(knot, annotation)


def test_nesting_without_end_in_the_data_is_refused() -> None:
    with pytest.raises(PayloadError, match="the data nests too deeply"):
        decode(Payload(b"[" * 100_000))


@pytest.mark.parametrize(
    ("data", "annotation", "path", "words"),
    [
        (b"", None, "$", "the data is not JSON"),
        (b"{", dict, "$", "the data is not JSON"),
        (b"\xff\xfe", str, "$", "the data is not JSON"),
        (b'"\xff"', str, "$", "the data is not JSON"),
        (b"NaN", float, "$", "the data is not JSON"),
        (b"1e999", float, "$", "the data is not JSON"),
        (b"{} x", dict, "$", "the data is not JSON"),
        (b'"5"', int, "$", "expected int, found a str"),
        (b"null", int, "$", "expected int, found null"),
        (b"1.5", int, "$", "expected int, found a float"),
        (b"[]", Order, "$", "expected Order, found an array"),
        (b"{}", Order, "$", "the field 'id' of Order is missing"),
        (order(id="x"), Order, "$.id", "expected UUID, found a str"),
        (order(lines=[{"sku": "a", "price": "much"}]), Order, "$.lines[0].price", "expected Decimal, found a str"),
        (order(lines={}), Order, "$.lines", "expected list[Line], found an object"),
        (order(note=5), Order, "$.note", "expected str | None, found an int"),
        (b'"purple"', Color, "$", "it is no value of Color"),
        (b"[1,2,3]", tuple[int, int], "$", "an array of 3"),
        (b'{"x":1}', dict[int, int], "$", "a key is not the text of int"),
        (b"[[1]]", dict[tuple[int], int], "$", "an array of [key, value] pairs"),
        (b"[[1]]", set[list[int]], "$", "cannot be in a set"),
        (b'"yesterday"', datetime, "$", "expected datetime as RFC 3339 text"),
        (b'"a"', UUID | datetime, "$", "expected UUID | datetime, found a str"),
        (b'{"$kagzi":"socket"}', Any, "$", "found a socket, and nothing says what that is"),
        (b'{"$kagzi":"UUID","value":5}', str | UUID, "$", "expected UUID, found an int"),
    ],
)
def test_what_cannot_be_decoded_names_the_expected_type_and_the_place(
    data: Any, annotation: Any, path: str, words: str
) -> None:
    raw = data if isinstance(data, bytes) else encode(data).data
    with pytest.raises(PayloadError) as refused:
        decode(Payload(raw), annotation)
    assert refused.value.path == path
    assert words in str(refused.value)


def test_messages_do_not_quote_the_payload() -> None:
    for data, annotation in (
        (b'{"alice@example.test":{"x":"secret"}}', dict[str, dict[str, int]]),
        (b'"secret"', Color),
        (b'["secret"]', list[UUID]),
        (b'"secret"', datetime),
    ):
        with pytest.raises(PayloadError) as refused:
            decode(Payload(data), annotation)
        assert "secret" not in str(refused.value)
        assert "alice" not in str(refused.value)


def test_an_encoding_that_was_not_undone_is_named() -> None:
    with pytest.raises(PayloadError, match=r"encoded as 'json\+zlib'"):
        decode(Payload(b"x", "json+zlib"), int)
