"""Where a server is found: its port, with TLS if it has a certificate, and how its own process reaches it. Behind TLS
that is a socket in a directory which no other user can open, so that pages and API need neither the name on the
certificate nor one of their own. Certificates are read once, at the start.
"""

from __future__ import annotations

import ssl
import tempfile

import grpc

from kagzi.server.settings import Settings

_FOR_ALL = {"0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}  # noqa: S104 - what they are reached by


class StartError(Exception):
    """The server cannot start; the message says what to do."""


class Listener:
    """One server's addresses."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.port = 0
        self._private: tempfile.TemporaryDirectory[str] | None = None

    @property
    def address(self) -> str:
        """Where clients find it; the port is the bound one once it listens."""
        return _address(self._settings.server_host, self.port or self._settings.server_port)

    @property
    def reachable_at(self) -> str:
        """Where this very process finds it: an address that stands for all has loopback among them."""
        if self._private is not None:
            return f"unix:{self._private.name}/server"
        host = _FOR_ALL.get(self._settings.server_host)
        return _address(host, self.port) if host else self.address

    def listen(self, server: grpc.aio.Server) -> None:
        """Takes the port. StartError when it cannot be had, or the certificate cannot be used."""
        shown = _credentials(self._settings)
        wanted = self.address
        try:
            if shown is None:
                self.port = server.add_insecure_port(wanted)
            else:
                self.port = server.add_secure_port(wanted, shown)
                self._private = tempfile.TemporaryDirectory(prefix="kagzi-")
                server.add_insecure_port(self.reachable_at)
        except RuntimeError:
            self.port = 0
        if self.port == 0:
            raise StartError(
                f"cannot listen on {wanted}: another process may have the port. Stop it, or choose another port "
                "(KAGZI_SERVER_PORT)"
            )

    def close(self) -> None:
        """Removes what it made."""
        if self._private is not None:
            self._private.cleanup()


def _credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """What to listen with; None where no certificate is set."""
    cert, key, authority = settings.server_tls_cert, settings.server_tls_key, settings.server_tls_client_ca
    if cert is None or key is None:
        return None
    try:
        # gRPC would say no more than that it cannot listen.
        trial = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
        trial.load_cert_chain(cert, key)
        pair = (key.read_bytes(), cert.read_bytes())
        roots = None if authority is None else authority.read_bytes()
    except (OSError, ValueError) as error:
        raise StartError(
            f"the certificate cannot be used ({error}): see KAGZI_SERVER_TLS_CERT, KAGZI_SERVER_TLS_KEY and "
            "KAGZI_SERVER_TLS_CLIENT_CA, which name files in PEM"
        ) from None
    return grpc.ssl_server_credentials([pair], root_certificates=roots, require_client_auth=roots is not None)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
