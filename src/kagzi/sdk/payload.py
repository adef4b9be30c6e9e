"""Values of workflows and steps as bytes, by annotation: readable JSON that comes back as it was.

`encode` and `decode` with the same annotation give an equal value of the same type, nested and in unions, or
say no with the path to what is wrong; nothing is ever pickled and nothing silently becomes something else.
The annotation is compiled once. Values that msgspec handles alone, which is most, then take about a
microsecond each way. What the JSON looks like is described in `shapes`; compression and encryption come
afterwards, in `codec`.

`annotation=None` means that this side knows no declaration (a run started by name): classes are then written
with their names, and read as dicts. `Any` means that the declaration itself says nothing, and must still be
exact.
"""

import contextlib
from typing import Any

import msgspec

from kagzi.sdk.errors import PayloadError
from kagzi.sdk.shapes.compiler import UNDECLARED, Compiler
from kagzi.sdk.shapes.shape import TAG, Misfit, Shape, native_throughout, type_name

JSON = "json"

_ENCODER = msgspec.json.Encoder()
_TAG_BYTES = TAG.encode()
_MOST_PLANS = 4_096


class Payload(msgspec.Struct, frozen=True, gc=False):
    """Encoded data and how it is encoded: `json`, followed by the codecs that were applied (`json+zlib`).

    A struct because it is made for every value: 40 ns, where a frozen dataclass takes 320.
    """

    data: bytes
    encoding: str = JSON

    def __repr__(self) -> str:
        # Logs must not hold payloads.
        return f"Payload({len(self.data)} bytes, {self.encoding})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("size", len(self.data)), ("encoding", self.encoding)]


class Plan:
    """One annotation, compiled: how its values are written and read."""

    __slots__ = ("_decoder", "_native", "_shape", "annotation", "name")

    def __init__(self, annotation: Any, shape: Shape) -> None:
        # Held, because plans are found by the annotation's id, which must not be given to another object.
        self.annotation = annotation
        self.name = shape.name
        self._shape = shape
        self._native = native_throughout(shape)
        self._decoder: msgspec.json.Decoder[Any] | None = None
        if self._native:
            # Some types it can write but not read, among them named aliases.
            with contextlib.suppress(TypeError):
                self._decoder = msgspec.json.Decoder(Any if shape.takes_all else annotation)

    def encode(self, value: Any) -> bytes:
        try:
            if self._native and self._shape.fits(value):
                return _ENCODER.encode(value)
        except (ValueError, TypeError, RecursionError):
            # Lone surrogates, endless nesting, integers beyond printing: the careful way finds out where.
            pass
        try:
            return _ENCODER.encode(self._shape.lower(value))
        except Misfit as misfit:
            raise _refused("encode", type_name(type(value)), misfit) from misfit.__cause__
        except RecursionError:
            raise _refused("encode", self.name, Misfit("it nests too deeply or contains itself")) from None
        except Exception as error:
            raise _refused("encode", self.name, Misfit(f"{type(error).__name__}: {error}")) from error

    def decode(self, data: bytes) -> Any:
        if self._decoder is not None and _TAG_BYTES not in data:
            try:
                return self._decoder.decode(data)
            except Exception:  # noqa: BLE001, S110 - the careful way reads more, or says where it went wrong
                pass
        try:
            plain = msgspec.json.decode(data)
        except RecursionError:
            raise _refused("decode", self.name, Misfit("the data nests too deeply")) from None
        except (msgspec.MsgspecError, ValueError) as error:
            raise _refused("decode", self.name, Misfit(f"the data is not JSON: {error}")) from None
        try:
            return self._shape.lift(plain)
        except Misfit as misfit:
            raise _refused("decode", self.name, misfit) from misfit.__cause__
        except Exception as error:
            raise _refused("decode", self.name, Misfit(f"{type(error).__name__}: {error}")) from error


def encode(value: Any, annotation: Any = None) -> Payload:
    """`value` as its declaration says. PayloadError if it is something else, or has no encoded form."""
    return Payload(plan(annotation).encode(value))


def decode(payload: Payload, annotation: Any = None) -> Any:
    """The value that was encoded with the same annotation. PayloadError if the data holds no such value."""
    if payload.encoding != JSON:
        raise PayloadError(
            f"The payload is encoded as {payload.encoding!r}, not as {JSON!r}. "
            "Give the client or worker the codecs it was written with."
        )
    return plan(annotation).decode(payload.data)


def plan(annotation: Any) -> Plan:
    """The compiled annotation. Call it where a type is declared, to hear early that it cannot be encoded."""
    found = _plans.get(id(annotation))
    if found is None:
        try:
            found = Plan(annotation, UNDECLARED if annotation is None else Compiler().shape(annotation))
        except Misfit as misfit:
            raise _refused("use", type_name(annotation), misfit) from misfit.__cause__
        except (TypeError, RecursionError) as error:
            raise _refused("use", type_name(annotation), Misfit(f"{type(error).__name__}: {error}")) from error
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        _plans[id(annotation)] = found
    return found


_plans: dict[int, Plan] = {}


def _refused(verb: str, name: str, misfit: Misfit) -> PayloadError:
    return PayloadError(f"Cannot {verb} {name} at {misfit.path}: {misfit.reason}.", type=name, path=misfit.path)
