"""Payload encryption with AES-256-GCM.

Each payload is sealed with a fresh random nonce and names its key, so that keys rotate: write with `current`,
keep the older ones to read. What it is bound to (namespace, workflow type, role) is authenticated but not
stored. A wrong key, a changed byte or another binding is one and the same error. Keys are never shown. With
random nonces a key is good for about four billion payloads: rotate before. A payload that was never encrypted
is read as it is; what was sealed here cannot be changed, but who can write the database can still replace it
by plain text.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kagzi.sdk.codec import Binding
from kagzi.sdk.errors import ConfigError, PayloadError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_VERSION = b"\x01"
_NONCE = 12
_SEAL = 16


class Encryption:
    """A codec: `Encryption(keys={"2024": key}, current="2024")` with keys of 32 random bytes."""

    name = "aes256gcm"
    __slots__ = ("_ciphers", "_current")

    def __init__(self, keys: Mapping[str, bytes], current: str) -> None:
        if current not in keys:
            raise ConfigError(
                f"Encryption(current={current!r}) is none of its keys ({', '.join(keys) or 'none given'})."
            )
        self._current = current
        self._ciphers = {key_id: _cipher(key_id, key) for key_id, key in keys.items()}

    def __repr__(self) -> str:
        return f"Encryption(keys={list(self._ciphers)}, current={self._current!r})"

    def encode(self, data: bytes, binding: Binding) -> bytes:
        key_id = self._current.encode()
        header = _VERSION + bytes([len(key_id)]) + key_id
        nonce = os.urandom(_NONCE)
        return header + nonce + self._ciphers[self._current].encrypt(nonce, data, _associated(header, binding))

    def decode(self, data: bytes, binding: Binding) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - it may not be installed

        start = 2 + data[1] if len(data) > 1 else 0
        if data[:1] != _VERSION or len(data) < start + _NONCE + _SEAL:
            raise PayloadError("The payload is damaged, or was not encrypted by Kagzi's aes256gcm.")
        header, nonce, sealed = data[:start], data[start : start + _NONCE], data[start + _NONCE :]
        key_id = header[2:].decode(errors="replace")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise PayloadError(
                f"The payload was encrypted with the key {key_id!r}, which is missing here "
                f"(there is: {', '.join(self._ciphers)}). Add it to `keys` of Encryption."
            )
        try:
            return cipher.decrypt(nonce, sealed, _associated(header, binding))
        except InvalidTag:
            raise PayloadError(
                f"The payload cannot be decrypted: the key {key_id!r} is not the one it was written with, "
                f"the data was changed, or it does not belong to the {binding.role} of "
                f"{binding.workflow_type!r} in namespace {binding.namespace!r}."
            ) from None


def _cipher(key_id: str, key: bytes) -> "AESGCM":
    if not 1 <= len(key_id.encode()) <= 255:
        raise ConfigError(f"The key id {key_id!r} must have 1 to 255 bytes.")
    if not isinstance(key, bytes) or len(key) != 32:
        raise ConfigError(f"The key {key_id!r} must be 32 bytes: make one with `secrets.token_bytes(32)`.")
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - it may not be installed
    except ImportError:
        raise ConfigError("Encryption needs the package cryptography: `pip install cryptography`.") from None
    return AESGCM(key)


def _associated(header: bytes, binding: Binding) -> bytes:
    # Each part with its length before it, so that no two bindings are the same bytes.
    parts = [header, *(text.encode() for text in (binding.namespace, binding.workflow_type, binding.role))]
    return b"kagzi" + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
