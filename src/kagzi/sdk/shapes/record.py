"""The shape of classes with named fields: dataclasses, msgspec structs and TypedDicts become JSON objects.

Unknown keys are ignored and missing ones take their defaults, so that fields can be added while runs are
under way. A class is rebuilt through its own constructor. Where that runs code of the user (`__post_init__`),
encoding first makes sure that rebuilding gives the same fields; a class that cannot keep them is refused
before anything is stored.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec

from kagzi.sdk.shapes.atom import Exact
from kagzi.sdk.shapes.shape import TAG, Misfit, Shape, key_step


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its attribute, the key it has in JSON, its shape, and whether reading may go without it."""

    name: str
    key: str
    shape: Shape
    required: bool


class Record(Shape):
    """A class whose instances hold their fields as attributes."""

    __slots__ = (
        "_build",
        "_by_key",
        "_by_name",
        "_exact",
        "_instance",
        "_marks",
        "_rebuilds",
        "_strict",
        "_values",
        "cls",
        "fields",
        "native",
    )
    kinds = frozenset(["object"])
    inline = True

    def __init__(self, name: str, cls: type) -> None:
        self.name = name
        self.cls: Any = cls
        self._instance: Any = cls
        self.fields: Sequence[Field] = ()
        self.native = False

    def define(
        self,
        fields: Iterable[Field],
        build: Callable[[dict[str, Any]], Any],
        *,
        native: bool = False,
        rebuilds: bool = False,
        strict: bool = False,
        marks: Mapping[str, Any] | None = None,
    ) -> None:
        """The second half of the constructor: fields may refer to the class itself, so they come after it."""
        self.fields = tuple(fields)
        self._build = build
        self.native = native
        self._rebuilds = rebuilds
        self._strict = strict
        self._marks = dict(marks or {})
        self._by_name = {field.name: field for field in self.fields}
        self._by_key = {field.key: field for field in self.fields}
        names = [field.name for field in self.fields]
        exact = tuple(field.shape.cls for field in self.fields if isinstance(field.shape, Exact))
        # With one name the getter gives no tuple, with none there is none.
        self._exact = exact if len(exact) == len(names) > 1 else None
        self._values = attrgetter(*names) if self._exact else None

    def parts(self) -> Iterable[Shape]:
        return [field.shape for field in self.fields]

    def fits(self, value: Any) -> bool:
        if type(value) is not self._instance:
            return False
        try:
            # Comparing types here saves a call a field, and most fields of most classes are of this sort.
            if self._values is not None:
                return tuple(map(type, self._values(value))) == self._exact
            return all(field.shape.fits(getattr(value, field.name)) for field in self.fields)
        except AttributeError:
            return False

    def lower(self, value: Any) -> dict[str, Any]:
        if type(value) is not self._instance:
            raise self.misplaced(value)
        values = self.read(value)
        if self._rebuilds:
            self._check_rebuilt(values)
        out = dict(self._marks)
        for name, item in values.items():
            field = self._by_name[name]
            try:
                out[field.key] = field.shape.lower(item)
            except Misfit as misfit:
                raise misfit.within(key_step(name)) from None
        return out

    def lift(self, plain: Any) -> Any:
        values = self.lift_fields(plain)
        try:
            return self._build(values)
        except Misfit:
            raise
        except Exception as error:
            # Validation of the user's, such as a ValueError in __post_init__.
            raise Misfit(f"{self.name} refused it: {type(error).__name__}: {error}") from error

    def lift_fields(self, plain: Any) -> dict[str, Any]:
        if type(plain) is not dict:
            raise self.unreadable(plain)
        if any(plain.get(key, mark) != mark for key, mark in self._marks.items()):
            raise Misfit(f"expected {self.name}, found an object marked as another type")
        if self._strict and self.surplus(plain):
            raise Misfit(f"the object has keys that {self.name} does not declare, and it forbids them")
        values = {}
        for key, item in plain.items():
            if field := self._by_key.get(key):
                try:
                    values[field.name] = field.shape.lift(item)
                except Misfit as misfit:
                    raise misfit.within(key_step(key)) from None
        for field in self.fields:
            if field.required and field.name not in values:
                raise Misfit(f"the field {field.key!r} of {self.name} is missing")
        return values

    def read(self, value: Any) -> dict[str, Any]:
        """The fields that `value` holds. One that a msgspec struct leaves UNSET is not there."""
        values = {}
        for field in self.fields:
            try:
                item = getattr(value, field.name)
            except AttributeError:
                raise Misfit(f"the field {field.name!r} of {self.name} is not set. Set it") from None
            if item is not msgspec.UNSET:
                values[field.name] = item
        return values

    def surplus(self, plain: dict[str, Any]) -> bool:
        """Whether `plain` has keys that mean nothing here."""
        return not plain.keys() - {TAG} - self._marks.keys() <= self._by_key.keys()

    def _check_rebuilt(self, values: dict[str, Any]) -> None:
        try:
            twin = self._build(values)
        except Exception as error:
            reason = error.reason if isinstance(error, Misfit) else f"{type(error).__name__}: {error}"
            raise Misfit(
                f"{self.name} cannot be rebuilt from its own fields: {reason}. Let it accept what it holds"
            ) from error
        for name, item in values.items():
            again = getattr(twin, name)
            if again is not item and (type(again) is not type(item) or again != item):
                raise Misfit(
                    f"rebuilding {self.name} from its fields gives another {name!r}. "
                    "Let __post_init__ or the validator leave a finished value as it is"
                )


class Keyed(Record):
    """A TypedDict: a dict with declared keys."""

    __slots__ = ()

    def __init__(self, name: str, cls: type) -> None:
        super().__init__(name, cls)
        self._instance = dict

    def fits(self, value: Any) -> bool:
        return (
            type(value) is dict
            and value.keys() <= self._by_key.keys()
            and all(
                field.shape.fits(value[field.key]) if field.key in value else not field.required
                for field in self.fields
            )
        )

    def read(self, value: Any) -> dict[str, Any]:
        surplus = value.keys() - self._by_key.keys()
        if surplus:
            shown = ", ".join(sorted(key_step(key) for key in surplus))
            raise Misfit(f"{self.name} does not declare {shown}, which would be lost. Declare it")
        for field in self.fields:
            if field.required and field.key not in value:
                raise Misfit(f"the key {field.key!r} of {self.name} is missing")
        return dict(value)
