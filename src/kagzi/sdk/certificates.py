"""TLS of clients and workers: whom to trust, and which certificate to show to a server that asks for one. What is not
given comes from the environment. Files are read once, when the client or worker is made.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import grpc

from kagzi.sdk.errors import ConfigError

_ON = {"1", "true", "yes", "on"}
_OFF = {"", "0", "false", "no", "off"}


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in PEM: `ca` signs the server's certificate (else the system's authorities do); `cert` and `key` are shown
    to a server that asks for them.
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ConfigError("cert (KAGZI_TLS_CERT) and key (KAGZI_TLS_KEY) are given together: one is missing.")

    def credentials(self) -> grpc.ChannelCredentials:
        """What gRPC makes of them."""
        return grpc.ssl_channel_credentials(
            root_certificates=_read("ca (KAGZI_TLS_CA)", self.ca),
            private_key=_read("key (KAGZI_TLS_KEY)", self.key),
            certificate_chain=_read("cert (KAGZI_TLS_CERT)", self.cert),
        )


# True: the system's authorities.
Tls: TypeAlias = "bool | Certificates | grpc.ChannelCredentials | None"


def resolve_tls(tls: Tls = None) -> grpc.ChannelCredentials | None:
    """How to connect: as given, as KAGZI_TLS_CA, KAGZI_TLS_CERT and KAGZI_TLS_KEY say, as KAGZI_TLS says, or plain."""
    return credentials(_said() if tls is None else tls)


def _said() -> Tls:
    said = os.environ.get("KAGZI_TLS", "").lower()
    if said not in _ON | _OFF:
        raise ConfigError(f"KAGZI_TLS is {said!r}: write true or false.")
    ca, cert, key = (os.environ.get(f"KAGZI_TLS_{name}") or None for name in ("CA", "CERT", "KEY"))
    if (ca or cert or key) and (said in _ON or not said):
        return Certificates(ca, cert, key)
    return said in _ON


def credentials(tls: Tls) -> grpc.ChannelCredentials | None:
    """What a channel is made with; None: a plain one."""
    if tls is None or tls is False:
        return None
    if isinstance(tls, Certificates):
        return tls.credentials()
    return grpc.ssl_channel_credentials() if tls is True else tls


def _read(what: str, path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{what} cannot be read: {error}.") from None
