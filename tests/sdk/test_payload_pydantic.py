"""Pydantic models as payloads, alone and inside everything else."""

import json
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from ipaddress import IPv4Address
from pathlib import PurePosixPath
from typing import Annotated, Any, Generic, Literal, TypedDict, TypeVar
from uuid import UUID, uuid4

import pydantic
import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel

from kagzi.sdk.errors import PayloadError
from kagzi.sdk.payload import Payload, decode, encode
from tests.sdk.annotated import same

T = TypeVar("T")


class Card(BaseModel):
    number: str = Field(alias="cardNumber", min_length=2)
    secret: bytes = b""
    limit: Decimal | float | None = None


class Cash(BaseModel):
    kind: Literal["cash"] = "cash"
    cents: int = Field(ge=0)


class Gift(BaseModel):
    kind: Literal["gift"] = "gift"
    cents: int


class Twin(BaseModel):
    cents: int
    kind: str = ""


class Payment(BaseModel):
    how: Annotated[Cash | Gift, Field(discriminator="kind")]
    twins: list[Cash | Twin] = []
    at: datetime | str = ""


class Box(BaseModel, Generic[T]):
    content: T


class Tree(BaseModel):
    name: str
    children: list["Tree"] = []


class Names(RootModel[list[str]]):
    pass


class Json(RootModel[dict[str, "Json"] | list["Json"] | int | str]):
    pass


class Open(BaseModel):
    a: int
    model_config = ConfigDict(extra="allow")


class Sealed(BaseModel):
    when: datetime
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    @pydantic.computed_field
    def year(self) -> int:
        return self.when.year


class Network(BaseModel):
    host: IPv4Address
    path: PurePosixPath = PurePosixPath("/")
    url: pydantic.HttpUrl | None = None


class Aliased(BaseModel):
    inner: int = Field(validation_alias="in", serialization_alias="out")


class Lowered(BaseModel):
    name: str

    @pydantic.field_validator("name")
    @classmethod
    def lower(cls, name: str) -> str:
        return name.lower()


class Hashed(BaseModel):
    password: str

    @pydantic.field_validator("password")
    @classmethod
    def hide(cls, password: str) -> str:
        return f"hash({password})"


@pydantic.dataclasses.dataclass
class Parcel:
    grams: int = Field(ge=0)
    card: Card | None = None


@dataclass
class Order:
    card: Card
    others: dict[str, Card | Cash | None]


class Keyed(TypedDict):
    card: Card | str


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (Card(cardNumber="42", secret=b"\xff\x00", limit=Decimal("1.10")), Card),
        (Payment(how=Gift(cents=1), twins=[Twin(cents=1, kind="cash"), Cash(cents=1)], at="noon"), Payment),
        (Payment(how=Cash(cents=1), at=datetime(2025, 1, 1)), Payment),  # noqa: DTZ001 - naive on purpose
        (Box[int](content=1), Box[int]),
        (Box[UUID | str](content=uuid4()), Box[UUID | str]),
        (Tree(name="a", children=[Tree(name="b")]), Tree),
        (Names(["a", "b"]), Names),
        (Json({"a": Json([Json(1), Json("x")])}), Json),
        (Open(a=1, b=(1, 2), c={"d": uuid4()}), Open),  # type: ignore[call-arg]
        (Sealed(when=datetime(2025, 1, 1)), Sealed),  # noqa: DTZ001 - naive on purpose
        (Network(host=IPv4Address("10.0.0.1"), url=pydantic.HttpUrl("https://kagzi.test/x")), Network),
        (Aliased.model_validate({"in": 5}), Aliased),
        (Lowered(name="ABC"), Lowered),
        (Parcel(5, Card(cardNumber="42")), Parcel),
        (Order(Card(cardNumber="42"), {"a": Cash(cents=1), "b": None}), Order),
        ({"card": Card(cardNumber="42")}, Keyed),
        ({"card": "42"}, Keyed),
        ([Card(cardNumber="42"), None, 5], list[Card | int | None]),
        ((Card(cardNumber="42"), Names(["x"])), tuple[Card, Names | list[str]]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_models_come_back_as_they_were_wherever_they_stand(value: Any, annotation: Any) -> None:
    assert same(decode(encode(value, annotation), annotation), value)


def test_a_model_is_written_as_plain_json_under_its_fields_names() -> None:
    assert json.loads(encode(Cash(cents=5), Cash).data) == {"kind": "cash", "cents": 5}
    assert json.loads(encode(Names(["a"]), Names).data) == ["a"]
    assert json.loads(encode(Sealed(when=datetime(2025, 1, 1)), Sealed).data) == {"when": "2025-01-01T00:00:00"}  # noqa: DTZ001


def test_json_in_pydantics_own_spelling_is_read_too() -> None:
    assert decode(Payload(b'{"cardNumber":"42"}'), Card) == Card(cardNumber="42")
    assert decode(Payload(b'{"cents":"5"}'), Cash) == Cash(cents=5)
    assert decode(Payload(b'{"in":5}'), Aliased) == Aliased.model_validate({"in": 5})
    assert decode(Payload(b'{"how":{"kind":"gift","cents":1}}'), Payment) == Payment(how=Gift(cents=1))


def test_validation_holds_for_what_comes_from_elsewhere_and_quotes_no_data() -> None:
    with pytest.raises(PayloadError) as refused:
        decode(Payload(b'{"how":{"kind":"cash","cents":-777}}'), Payment)
    assert refused.value.path.startswith("$.how")
    assert "greater than or equal to 0" in str(refused.value)
    assert "777" not in str(refused.value)
    with pytest.raises(PayloadError, match="Extra inputs are not permitted"):
        decode(Payload(b'{"when":"2025-01-01T00:00:00","x":1}'), Sealed)
    with pytest.raises(PayloadError, match="Parcel refused it"):
        decode(Payload(b'{"grams":-1}'), Parcel)


def test_a_tagged_model_is_never_taken_for_another() -> None:
    data = encode(Payment(how=Gift(cents=1), twins=[Twin(cents=1)]), Payment).data
    with pytest.raises(PayloadError):
        decode(Payload(data.replace(b'"Twin"', b'"Gone"').replace(b'"kind":""', b'"kind":"cash"')), Payment)


def test_a_model_whose_validators_change_it_each_time_is_refused_before_it_is_stored() -> None:
    with pytest.raises(PayloadError, match="gives another 'password'"):
        encode(Hashed(password="x"), Hashed)


def test_a_secret_that_pydantic_would_mask_is_refused() -> None:
    class Login(BaseModel):
        password: pydantic.SecretStr

    with pytest.raises(PayloadError, match=r"\$\.password: SecretStr does not come back") as refused:
        encode(Login(password=pydantic.SecretStr("hidden")), Login)
    assert "hidden" not in str(refused.value)


def test_a_field_that_is_excluded_from_output_is_refused_unless_it_holds_its_default() -> None:
    class Hidden(BaseModel):
        shown: int
        hidden: int = Field(default=0, exclude=True)

    assert decode(encode(Hidden(shown=1), Hidden), Hidden) == Hidden(shown=1)
    with pytest.raises(PayloadError, match="the field 'hidden' of Hidden is excluded"):
        encode(Hidden(shown=1, hidden=2), Hidden)


def test_a_subclass_in_a_field_is_refused_because_it_would_be_cut() -> None:
    class Gold(Card):
        bonus: int = 1

    class Holder(BaseModel):
        card: Card

    with pytest.raises(PayloadError, match=r"\$\.card: found a Gold where Card is declared"):
        encode(Holder(card=Gold(cardNumber="42")), Holder)


def test_a_model_with_a_field_that_nobody_can_encode_names_it() -> None:
    class Socket:
        pass

    class Bad(BaseModel):
        socket: Socket
        model_config = ConfigDict(arbitrary_types_allowed=True)

    with pytest.raises(PayloadError, match=r"\$\.socket: Socket has no encoded form"):
        encode(Bad(socket=Socket()), Bad)
