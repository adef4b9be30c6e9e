"""Shapes of pydantic: models field by field like any class, its other types as pydantic writes them.

Models are not left to pydantic's JSON, which does not bring everything back: bytes that are no text fail, two
models of one form in a union come back as the first, a field excluded from output is gone. They are rebuilt
by validation, so constraints and validators hold for what comes from outside, and JSON in the form that
pydantic documents (aliases, numbers as text) is understood too. Private attributes do not travel. pydantic is
never imported unless the user did.
"""

import sys
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from kagzi.sdk.shapes.record import Field, Record
from kagzi.sdk.shapes.shape import KINDS, TAG, Misfit, Shape, key_step, type_name

Compile = Callable[[Any], Shape]

_OLDEST = (2, 11)
_VALIDATORS = ("validators", "field_validators", "root_validators", "model_validators")


def is_model(cls: Any) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


def is_root_model(cls: Any) -> bool:
    return is_model(cls) and issubclass(cls, sys.modules["pydantic"].RootModel)


def is_foreign(cls: Any) -> bool:
    """A type that pydantic brings, such as a URL."""
    return "pydantic" in sys.modules and hasattr(cls, "__get_pydantic_core_schema__")


class Model(Record):
    """A pydantic model."""

    __slots__ = ("_extra", "_hidden")

    def define_model(self, _annotation: Any, compile: Compile) -> None:
        cls = self.cls
        _complete(cls)
        self._extra = compile(Any) if cls.model_config.get("extra") == "allow" else None
        self._hidden = {
            name: info.get_default(call_default_factory=False)
            for name, info in cls.model_fields.items()
            if info.exclude
        }
        self.define(
            [
                Field(name, name, _field_shape(name, info, compile), info.is_required())
                for name, info in cls.model_fields.items()
            ],
            lambda values: _validated(lambda: cls.model_validate(values, by_name=True), self.name),
            rebuilds=any(getattr(cls.__pydantic_decorators__, kind, None) for kind in _VALIDATORS),
        )

    def lower(self, value: Any) -> dict[str, Any]:
        out = super().lower(value)
        if self._extra is not None:
            for key, item in (value.__pydantic_extra__ or {}).items():
                if key == TAG:
                    raise Misfit(f"the key {TAG!r} is Kagzi's own. Rename it")
                try:
                    out[key] = self._extra.lower(item)
                except Misfit as misfit:
                    raise misfit.within(key_step(key)) from None
        return out

    def read(self, value: Any) -> dict[str, Any]:
        values = super().read(value)
        for name, default in self._hidden.items():
            if values.pop(name) != default:
                raise Misfit(
                    f"the field {name!r} of {self.name} is excluded from output and would be lost. "
                    "Remove `exclude=True`, or pass a model without it"
                )
        return values

    def lift(self, plain: Any) -> Any:
        if type(plain) is dict and (self._extra is not None or not self.surplus(plain)):
            try:
                return super().lift(plain)
            except Misfit:
                # With tags inside, pydantic would ignore them and might take one class for another.
                if TAG.encode() in msgspec.json.encode(plain):
                    raise
        data = msgspec.json.encode(plain)
        return _validated(lambda: self.cls.model_validate_json(data), self.name)

    def lift_fields(self, plain: Any) -> dict[str, Any]:
        values = super().lift_fields(plain)
        if self._extra is not None:
            known = {field.key for field in self.fields} | {TAG}
            values |= {key: self._extra.lift(item) for key, item in plain.items() if key not in known}
        return values


class Root(Shape):
    """A pydantic RootModel: written as what it holds."""

    __slots__ = ("_shape", "cls", "kinds")

    def __init__(self, cls: Any, compile: Compile) -> None:
        _complete(cls)
        self.name = cls.__name__
        self.cls = cls
        self._shape = compile(cls.model_fields["root"].annotation)
        self.kinds = self._shape.kinds

    def fits(self, value: Any) -> bool:
        return type(value) is self.cls and self._shape.fits(value.root)

    def lower(self, value: Any) -> Any:
        if type(value) is not self.cls:
            raise self.misplaced(value)
        return self._shape.lower(value.root)

    def lift(self, plain: Any) -> Any:
        root = self._shape.lift(self.unwrapped(plain))
        return _validated(lambda: self.cls.model_validate(root), self.name)


class Foreign(Shape):
    """A type that only pydantic knows, written as its JSON; refused when that does not come back equal."""

    __slots__ = ("_adapter",)
    kinds = frozenset(KINDS.values())

    def __init__(self, annotation: Any) -> None:
        self.name = type_name(annotation)
        try:
            self._adapter = sys.modules["pydantic"].TypeAdapter(annotation)
        except Exception:  # noqa: BLE001 - making a schema runs code of the type
            raise Misfit(f"{self.name} has no encoded form, and pydantic knows none either") from None

    def fits(self, _value: Any) -> bool:
        return False

    def lower(self, value: Any) -> Any:
        try:
            plain = self._adapter.dump_python(value, mode="json", round_trip=True, warnings="error")
            twin = self._adapter.validate_json(msgspec.json.encode(plain))
        except Exception as error:
            raise self.misplaced(value) from error
        if type(twin) is not type(value) or twin != value:
            raise Misfit(f"{type_name(type(value))} does not come back from pydantic's JSON. Use another type")
        return plain

    def lift(self, plain: Any) -> Any:
        data = msgspec.json.encode(self.unwrapped(plain))
        return _validated(lambda: self._adapter.validate_json(data), self.name)


def _complete(cls: Any) -> None:
    version = sys.modules["pydantic"].VERSION
    if tuple(map(int, version.split(".")[:2])) < _OLDEST:
        raise Misfit(f"pydantic {version} is too old. Install pydantic {_OLDEST[0]}.{_OLDEST[1]} or newer")
    try:
        cls.model_rebuild()
    except Exception as error:  # noqa: BLE001 - making a schema runs code of the model
        raise Misfit(f"the annotations of {cls.__name__} cannot be read: {error}") from None


def _field_shape(name: str, info: Any, compile: Compile) -> Shape:
    try:
        return compile(info.annotation)
    except Misfit as misfit:
        try:
            return Foreign(Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation)
        except Misfit:
            raise misfit.within(key_step(name)) from None


def _validated(validate: Callable[[], Any], name: str) -> Any:
    try:
        return validate()
    except sys.modules["pydantic"].ValidationError as error:
        # Only its place and message: with the input, which it holds too, a log would hold the payload.
        first = error.errors()[0]
        misfit = Misfit(f"{name} refused it: {first['msg']}")
        for step in reversed(first["loc"]):
            misfit.within(f"[{step}]" if isinstance(step, int) else key_step(step))
        raise misfit from None
