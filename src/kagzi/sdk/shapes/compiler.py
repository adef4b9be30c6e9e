"""From an annotation to its shape.

What is supported is supported wherever it stands: nested, optional, in unions, generic, recursive. What is
not is refused with the path to it and what can be used instead. Making a shape never looks at values.
"""

import collections.abc
import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from datetime import datetime, time
from enum import Enum
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NotRequired,
    Required,
    TypeVar,
    get_args,
    get_origin,
)

import msgspec

from kagzi.sdk.shapes import classes, model
from kagzi.sdk.shapes.anything import Anything
from kagzi.sdk.shapes.array import Array, Row
from kagzi.sdk.shapes.atom import EXACT, Choice, Constrained, Enumeration, Exact, Real
from kagzi.sdk.shapes.mapping import Mapping
from kagzi.sdk.shapes.moment import Moment
from kagzi.sdk.shapes.record import Keyed, Record
from kagzi.sdk.shapes.shape import KINDS, Misfit, Shape, remedy, type_name
from kagzi.sdk.shapes.union import Union

SUPPORTED = (
    "Use dataclasses, pydantic models, msgspec structs, TypedDicts, NamedTuples, plain JSON values, "
    "datetime, date, time, timedelta, UUID, Decimal, bytes, enums, and lists, tuples, sets, dicts and unions of them"
)

_ABSTRACT: dict[Any, tuple[type, ...]] = {
    collections.abc.Sequence: (list, tuple),
    collections.abc.Collection: (list, tuple),
    collections.abc.Iterable: (list, tuple),
    collections.abc.MutableSequence: (list,),
    collections.abc.Set: (set, frozenset),
    collections.abc.MutableSet: (set,),
}
_WRAPPERS = (Required, NotRequired, Final, ClassVar, getattr(typing, "ReadOnly", Final))
_BUILTIN = {cls.__name__: cls for cls in (*EXACT, *KINDS, datetime, time, tuple, set, frozenset)}

_WITH_FIELDS: tuple[tuple[Callable[[Any], bool], Any, Any], ...] = (
    (model.is_model, model.Model, model.Model.define_model),
    (classes.is_typed_dict, Keyed, classes.define_typed_dict),
    (classes.is_named_tuple, Row, classes.define_named_tuple),
    (classes.is_struct, Record, classes.define_struct),
    (dataclasses.is_dataclass, Record, classes.define_dataclass),
)


class Compiler:
    """Makes the shape of one annotation, knowing the classes it is in the middle of."""

    def __init__(self) -> None:
        self._classes: dict[Any, Shape] = {}

    def shape(self, annotation: Any) -> Shape:
        if annotation is None:
            return Exact(type(None))
        if annotation is Any or annotation is object:
            return ANY
        if Exact.covers(annotation):
            return Exact(annotation)
        if annotation is float:
            return Real()
        if annotation is datetime or annotation is time:
            return Moment(annotation)
        origin = get_origin(annotation)
        if origin is Annotated:
            return self._annotated(annotation)
        if origin is typing.Union or origin is types.UnionType:
            return self._union(
                [self.shape(member) for member in get_args(annotation) if member is not msgspec.UnsetType]
            )
        if origin is Literal:
            return self._literal(get_args(annotation))
        if origin in _WRAPPERS:
            return self.shape(get_args(annotation)[0])
        return self._named(annotation) or self._container(annotation) or self._class(annotation)

    def _annotated(self, annotation: Any) -> Shape:
        shape = self.shape(get_args(annotation)[0])
        bounded = any(isinstance(extra, msgspec.Meta) for extra in annotation.__metadata__)
        return Constrained(shape, annotation) if bounded and isinstance(shape, Exact | Real | Moment) else shape

    def _literal(self, options: tuple[Any, ...]) -> Shape:
        scalars = [option for option in options if type(option) in KINDS]
        shapes: list[Shape] = [Choice(scalars)] if scalars else []
        # Members of enums and bytes: the whole type is accepted, for type checkers already hold the bounds.
        others = dict.fromkeys(type(option) for option in options if type(option) not in KINDS)
        return self._union(shapes + [self.shape(cls) for cls in others])

    def _union(self, shapes: list[Shape]) -> Shape:
        members: dict[Any, Shape] = {}
        scalars: dict[Any, Any] = {}
        for shape in shapes:
            for member in shape.members if isinstance(shape, Union) else (shape,):
                if isinstance(member, Choice):
                    # With their types, for 1 and True are equal.
                    scalars |= {(type(option), option): option for option in member.options}
                else:
                    members.setdefault((type(member), member.name, getattr(member, "cls", None)), member)
        # What `str` says already, a Literal of text need not say again.
        whole = {member.cls for member in members.values() if isinstance(member, Exact)}
        scalars = {key: option for key, option in scalars.items() if type(option) not in whole}
        flat = [*members.values(), *([Choice([*scalars.values()])] if scalars else [])]
        return flat[0] if len(flat) == 1 else Union(flat, _tags(flat))

    def _named(self, annotation: Any) -> Shape | None:
        if isinstance(annotation, str | typing.ForwardRef):
            raise Misfit(f"the annotation {annotation!r} is text that names nothing known. Give the type itself")
        if isinstance(annotation, TypeVar):
            return self._union(
                [self.shape(each) for each in annotation.__constraints__ or (annotation.__bound__ or Any,)]
            )
        if supertype := getattr(annotation, "__supertype__", None):
            return self.shape(supertype)
        alias = get_origin(annotation) or annotation
        if isinstance(alias, type) or not hasattr(alias, "__value__"):
            return None
        return self._referred(
            annotation, str(annotation), lambda: self.shape(classes.alias_value(alias, get_args(annotation)))
        )

    def _referred(self, annotation: Any, name: str, make: Callable[[], Shape]) -> Shape:
        if annotation not in self._classes:
            self._classes[annotation] = reference = Reference(name)
            reference.target = make()
            return reference.target
        return self._classes[annotation]

    def _container(self, annotation: Any) -> Shape | None:
        origin = get_origin(annotation) or annotation
        given = get_args(annotation)
        bare = annotation is origin or annotation is typing.Tuple  # noqa: UP006
        if origin is tuple and not bare and given[-1:] != (Ellipsis,):
            return self._row(given)
        if origin in (list, tuple, set, frozenset):
            return Array(origin, self.shape(given[0] if given else Any))
        if origin in (dict, collections.abc.Mapping, collections.abc.MutableMapping):
            key, value = given or (Any, Any)
            return Mapping(self.shape(key), self.shape(value))
        if kinds := _ABSTRACT.get(origin):
            item = self.shape(given[0] if given else Any)
            return self._union([Array(kind, item) for kind in kinds])
        return None

    def _row(self, given: tuple[Any, ...]) -> Row:
        items = [self.shape(item) for item in given]
        row = Row(f"tuple[{', '.join(item.name for item in items) or '()'}]", tuple)
        row.define(items)
        return row

    def _class(self, annotation: Any) -> Shape:
        cls = get_origin(annotation) or annotation
        if not isinstance(cls, type):
            raise _unsupported(annotation)
        if issubclass(cls, Enum):
            return Enumeration(cls)
        if model.is_root_model(cls):
            return self._referred(annotation, cls.__name__, lambda: model.Root(cls, self.shape))
        for recognised, kind, define in _WITH_FIELDS:
            if recognised(cls):
                if annotation not in self._classes:
                    # Known before its fields are, for they may be of the class itself.
                    self._classes[annotation] = made = kind(self._class_name(cls, annotation), cls)
                    define(made, annotation, self.shape)
                return self._classes[annotation]
        if model.is_foreign(cls):
            return model.Foreign(cls)
        raise _unsupported(annotation)

    def _class_name(self, cls: type, annotation: Any) -> str:
        arguments = ", ".join(self.shape(argument).name for argument in get_args(annotation))
        return f"{cls.__name__}[{arguments}]" if arguments else cls.__name__


class Reference(Shape):
    """A named alias inside its own definition, such as `type Tree = int | list[Tree]`."""

    __slots__ = ("target",)
    target: Shape
    # It is not known yet which: in a union it takes a tag and is right in any case.
    kinds = frozenset(KINDS.values())

    def __init__(self, name: str) -> None:
        self.name = name

    def fits(self, value: Any) -> bool:
        return self.target.fits(value)

    def lower(self, value: Any) -> Any:
        return self.target.lower(value)

    def lift(self, plain: Any) -> Any:
        return self.target.lift(plain)


@functools.lru_cache(maxsize=1024)
def resolve(cls: type) -> Shape:
    """The shape of a value's own class."""
    if cls is object:
        raise _unsupported(cls)
    return Compiler().shape(cls)


ANY = Anything(resolve)
UNDECLARED = Anything(resolve, declared=False)


def _tags(members: list[Shape]) -> list[str]:
    names = [member.name for member in members]
    tags = []
    for member in members:
        cls = getattr(member, "cls", None)
        mistaken = names.count(member.name) > 1 or _BUILTIN.get(member.name, cls) is not cls
        tags.append(f"{cls.__module__}.{cls.__qualname__}" if cls and mistaken else member.name)
    if len(set(tags)) < len(tags):
        raise Misfit(f"two types of {' | '.join(names)} have the same name and cannot be told apart. Rename one")
    return tags


def _unsupported(annotation: Any) -> Misfit:
    return Misfit(f"{type_name(annotation)} has no encoded form. {remedy(annotation) or SUPPORTED}")
