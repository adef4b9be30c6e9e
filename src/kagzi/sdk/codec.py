"""What happens to payloads between the SDK and the server: compression, encryption, what users plug in.

A chain applies its codecs in order and writes their names into the payload's encoding
(`json+zlib+aes256gcm`). Reading follows what is written there, not what is configured, so codecs may be
added, changed and retired while old payloads live on. The server never sees more than the encoded bytes and
this text.

Encryption binds data to namespace, workflow type and role: bytes moved elsewhere do not decrypt. It does not
bind them to a run, so that forks and the runs of a schedule still can.
"""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kagzi.sdk.errors import ConfigError, PayloadError
from kagzi.sdk.payload import Payload

# The last four are of automations, whose payloads belong to the automation as a whole.
Role = Literal["input", "output", "step", "signal", "event", "handler", "prepared", "mutation"]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Binding:
    """Where a payload belongs. The same three must be known wherever it is read."""

    namespace: str
    workflow_type: str
    role: Role


class Codec(Protocol):
    """Turns bytes into others and back. `encode` that returns the very same object left them as they are."""

    @property
    def name(self) -> str: ...

    def encode(self, data: bytes, binding: Binding, /) -> bytes: ...

    def decode(self, data: bytes, binding: Binding, /) -> bytes: ...


class Chain:
    """The codecs of a client or worker, in the order in which they are applied."""

    __slots__ = ("_codecs",)

    def __init__(self, codecs: Sequence[Codec] = ()) -> None:
        self._codecs = {codec.name: codec for codec in codecs}
        for codec in codecs:
            if not _NAME.fullmatch(codec.name):
                raise ConfigError(
                    f"{codec.name!r} cannot be a codec's name: it takes 1 to 32 of a-z, 0-9, '.', '_', '-'."
                )
        if len(self._codecs) < len(codecs):
            raise ConfigError("Two codecs have the same name: give each its own, for payloads are read by it.")

    def __bool__(self) -> bool:
        return bool(self._codecs)

    def encode(self, payload: Payload, binding: Binding) -> Payload:
        data, encoding = payload.data, payload.encoding
        for name, codec in self._codecs.items():
            try:
                encoded = codec.encode(data, binding)
            except PayloadError:
                raise
            except Exception as error:
                raise PayloadError(f"The codec {name!r} could not encode: {type(error).__name__}: {error}.") from error
            if encoded is not data:
                data, encoding = encoded, f"{encoding}+{name}"
        return payload if data is payload.data else Payload(data, encoding)

    def decode(self, payload: Payload, binding: Binding) -> Payload:
        written, *names = payload.encoding.split("+")
        if not names:
            return payload
        data = payload.data
        for name in reversed(names):
            codec = self._codecs.get(name)
            if codec is None:
                known = ", ".join(self._codecs) or "none"
                raise PayloadError(
                    f"The payload was written with the codec {name!r}, which is missing here "
                    f"(there is: {known}). Add it to `codecs` of the client or worker."
                )
            try:
                data = codec.decode(data, binding)
            except PayloadError:
                raise
            except Exception as error:
                raise PayloadError(f"The codec {name!r} could not decode: {type(error).__name__}: {error}.") from error
        return Payload(data, written)


class Compression:
    """zlib for payloads of at least `min_size` bytes that become smaller by it."""

    name = "zlib"
    __slots__ = ("_level", "_max_size", "_min_size")

    def __init__(self, *, min_size: int = 1024, level: int = 6, max_size: int = 64 * _MIB) -> None:
        if not 1 <= level <= 9:
            raise ConfigError(f"Compression(level={level!r}) must be from 1 (fast) to 9 (small).")
        if not 0 <= min_size <= max_size:
            raise ConfigError(f"Compression(min_size={min_size!r}) must be from 0 to max_size ({max_size}).")
        self._min_size = min_size
        self._level = level
        self._max_size = max_size

    def encode(self, data: bytes, _binding: Binding) -> bytes:
        if len(data) < self._min_size:
            return data
        if len(data) > self._max_size:
            raise PayloadError(f"The payload of {len(data)} bytes is larger than max_size ({self._max_size} bytes).")
        packed = zlib.compress(data, self._level)
        return packed if len(packed) < len(data) else data

    def decode(self, data: bytes, _binding: Binding) -> bytes:
        unpacker = zlib.decompressobj()
        try:
            # Bounded, because a few bytes may claim to be gigabytes.
            plain = unpacker.decompress(data, self._max_size + 1)
        except zlib.error as error:
            raise PayloadError(f"The payload is damaged: zlib cannot read it ({error}).") from None
        if len(plain) > self._max_size:
            raise PayloadError(f"The payload unpacks to more than max_size ({self._max_size} bytes). Raise it.")
        if not unpacker.eof or unpacker.unused_data:
            raise PayloadError("The payload is damaged: its compressed data is cut off or followed by something else.")
        return plain
