"""Reading classes: the fields of a dataclass, struct, TypedDict or NamedTuple, and how one is built again."""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NotRequired, Required, TypeVar, get_args, get_origin

import msgspec

from kagzi.sdk.shapes.array import Row
from kagzi.sdk.shapes.record import Field, Keyed, Record
from kagzi.sdk.shapes.shape import Misfit, Shape, key_step

Compile = Callable[[Any], Shape]
Filling = dict[Any, Any]
"""What each type variable stands for."""


def is_typed_dict(cls: Any) -> bool:
    # By its marks, because `typing.is_typeddict` does not know those of typing_extensions.
    return isinstance(cls, type) and issubclass(cls, dict) and hasattr(cls, "__required_keys__")


def is_struct(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, msgspec.Struct)


def is_named_tuple(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def define_dataclass(record: Record, annotation: Any, compile: Compile) -> None:
    cls = record.cls
    hints = type_hints(annotation)
    declared = dataclasses.fields(cls)
    validates = getattr(cls, "__is_pydantic_dataclass__", False)
    has_init = cls.__dataclass_params__.init or validates
    by_init = {field.name for field in declared if field.init} if has_init else set()

    def build(values: dict[str, Any]) -> Any:
        given = {name: item for name, item in values.items() if name in by_init}
        instance = cls(**given) if has_init else object.__new__(cls)
        for name in values.keys() - by_init:
            object.__setattr__(instance, name, values[name])
        return instance

    def required(field: dataclasses.Field[Any]) -> bool:
        return field.init and field.default is field.default_factory is dataclasses.MISSING

    runs_code = hasattr(cls, "__post_init__") or validates
    record.define(
        _fields(compile, ((field.name, field.name, hints[field.name], required(field)) for field in declared)),
        build,
        native=not runs_code and len(by_init) == len(declared),
        rebuilds=runs_code,
    )


def define_struct(record: Record, annotation: Any, compile: Compile) -> None:
    cls = record.cls
    type_hints(annotation)
    config = cls.__struct_config__
    declared = msgspec.structs.fields(annotation)
    post_init = hasattr(cls, "__post_init__")
    record.define(
        _fields(compile, ((field.name, field.encode_name, field.type, field.required) for field in declared)),
        lambda values: cls(**values),
        # As an array a struct could not carry a tag, so it is always written as an object.
        native=not post_init and not config.array_like,
        rebuilds=post_init,
        strict=config.forbid_unknown_fields,
        marks={config.tag_field: config.tag} if config.tag_field else None,
    )


def define_typed_dict(keyed: Keyed, annotation: Any, compile: Compile) -> None:
    entries = []
    for key, hint in type_hints(annotation).items():
        # Asked here too: __required_keys__ is wrong under `from __future__ import annotations`.
        required = get_origin(hint) is Required or (
            key in keyed.cls.__required_keys__ and get_origin(hint) is not NotRequired
        )
        entries.append((key, key, hint, required))
    keyed.define(_fields(compile, entries), dict, native=True)


def define_named_tuple(row: Row, annotation: Any, compile: Compile) -> None:
    cls = row.cls
    hints = type_hints(annotation)
    fields = _fields(compile, ((name, name, hints.get(name, Any), True) for name in cls._fields))
    row.define([field.shape for field in fields], cls._fields, len(cls._field_defaults))


def _fields(compile: Compile, entries: Iterable[tuple[str, str, Any, bool]]) -> Iterator[Field]:
    for name, key, hint, required in entries:
        try:
            yield Field(name, key, compile(hint), required)
        except Misfit as misfit:
            raise misfit.within(key_step(name)) from None


def type_hints(annotation: Any) -> dict[str, Any]:
    """The annotations of a class's fields, with the parameters of a generic one filled in."""
    cls = get_origin(annotation) or annotation
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as error:  # noqa: BLE001 - it evaluates text of the user's
        raise Misfit(
            f"the annotations of {cls.__name__} cannot be read: {error}. Define what they name at the top of "
            "its module, and do not import it under TYPE_CHECKING"
        ) from None
    filling = _filling(annotation)
    return {name: filled(hint, filling) for name, hint in hints.items()} if filling else hints


def alias_value(alias: Any, arguments: tuple[Any, ...]) -> Any:
    """What a named alias stands for, which before Python 3.12 may be text."""
    holder = type(str(alias), (), {"__module__": alias.__module__, "__annotations__": {"value": alias.__value__}})
    return filled(type_hints(holder)["value"], dict(zip(alias.__type_params__, arguments, strict=False)))


def _filling(annotation: Any) -> Filling:
    cls = get_origin(annotation) or annotation
    filling: Filling = dict(zip(getattr(cls, "__parameters__", ()), get_args(annotation), strict=False))
    for base in getattr(cls, "__orig_bases__", ()):
        origin = get_origin(base)
        if origin is not Generic and inspect.isclass(origin):
            filling = _filling(filled(base, filling)) | filling
    return filling


def filled(hint: Any, filling: Filling) -> Any:
    """`hint` with its type variables replaced."""
    if isinstance(hint, TypeVar):
        return filling.get(hint, hint)
    free = getattr(hint, "__parameters__", ())
    if inspect.isclass(hint) or not any(variable in filling for variable in free):
        return hint
    return hint[tuple(filling.get(variable, variable) for variable in free)]
