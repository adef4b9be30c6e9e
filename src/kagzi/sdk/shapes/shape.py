"""What every shape can do, and how it says that a value or a document is not its own.

A shape answers three questions: does this value fit exactly (`fits`), what JSON does it become (`lower`), and
what value does this JSON mean (`lift`). `lower` and `lift` raise Misfit, which gathers the path on its way
out and never quotes the data itself: messages end up in logs, payloads must not.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from typing import Any

TAG = "$kagzi"
VALUE = "value"

KINDS: dict[type, str] = {
    type(None): "null",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    list: "array",
    dict: "object",
}


class Misfit(Exception):
    """A value that is not of its shape; `path` is filled in from the inside out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []

    def within(self, step: str) -> "Misfit":
        self.steps.append(step)
        return self

    @property
    def path(self) -> str:
        return "$" + "".join(reversed(self.steps))


class Shape:
    """The compiled form of one annotation. Subclasses are immutable once compiled."""

    __slots__ = ("name",)

    name: str
    """How tags and messages call it, such as `list[int]`."""

    kinds: frozenset[str] = frozenset()
    """The kinds of JSON value it may be written as."""

    natural: bool = False
    """It is what JSON itself means by its kinds, so in a union it is the one that stays untagged."""

    native: bool = False
    """msgspec alone writes and reads values that fit (those of `parts` aside)."""

    takes_all: bool = False
    """It is `Any`."""

    inline: bool = False
    """It is written as an object with free keys, so a tag can stand among them."""

    def parts(self) -> Iterable["Shape"]:
        return ()

    def fits(self, value: Any) -> bool:
        raise NotImplementedError

    def all_fit(self, values: Collection[Any]) -> bool:
        return all(map(self.fits, values))

    def lower(self, value: Any) -> Any:
        raise NotImplementedError

    def lift(self, plain: Any) -> Any:
        raise NotImplementedError

    def tags(self) -> tuple[str, ...]:
        """The tags under which `lift` takes a wrapped value: its name with and without parameters."""
        return (self.name, self.name.partition("[")[0])

    def unwrapped(self, plain: Any) -> Any:
        """`plain` without the tag that a sender who did not know the annotation put around it."""
        if type(plain) is dict and VALUE in plain and plain.get(TAG) in self.tags():
            return plain[VALUE]
        return plain

    def misplaced(self, value: Any) -> Misfit:
        found = type_name(type(value))
        if any(found == type_name(base) for base in type(value).__mro__[1:]) or found == self.name:
            found = f"{type(value).__module__}.{type(value).__qualname__}"
        what_to_do = remedy(type(value)) or (
            "Declare the type that is really used (for several, a union), or convert the value"
        )
        return Misfit(f"found {article(found)} where {self.name} is declared. {what_to_do}")

    def unreadable(self, plain: Any) -> Misfit:
        return Misfit(f"expected {self.name}, found {article(KINDS.get(type(plain), type_name(type(plain))))}")


def remedy(cls: Any) -> str:
    """What to do about a value of a class that nobody means to store; empty when it may be meant."""
    if not isinstance(cls, type):
        return ""
    if issubclass(cls, Awaitable):
        return "Write `await` before what makes it"
    if issubclass(cls, Iterator | AsyncIterator):
        return "Return a list of what it yields"
    return ""


def each(convert: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    out = []
    for index, item in enumerate(items):
        try:
            out.append(convert(item))
        except Misfit as misfit:
            raise misfit.within(f"[{index}]") from None
    return out


def key_step(key: Any) -> str:
    # A key may be customer data, so only what looks like a field's name is shown.
    return f".{key}" if isinstance(key, str) and key.isidentifier() and len(key) <= 40 else "[...]"


def type_name(cls: Any) -> str:
    """`int`, `UUID`, `Order`: short, because tags are read by people."""
    return "None" if cls is type(None) else getattr(cls, "__name__", None) or str(cls)


def article(name: str) -> str:
    return name if name in ("None", "null") else f"an {name}" if name[:1] in "aeiouAEIO" else f"a {name}"


def native_throughout(shape: Shape) -> bool:
    """Whether msgspec alone can do the whole of `shape`, however its parts refer to each other."""
    seen: dict[int, Shape] = {}
    waiting = [shape]
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        if not current.native:
            return False
        seen[id(current)] = current
        waiting.extend(current.parts())
    return True
