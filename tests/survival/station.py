"""A server to be killed and started again at its address."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
from pathlib import Path
from types import TracebackType

from tests.conformance.servers import ServerProcess


class Station(ServerProcess):
    """`kagzi server` on a port of its own. It ends with SIGKILL, as everything here may."""

    def __init__(self, database_url: str, directory: Path, **settings: object) -> None:
        chosen = {"server_port": _free_port(), "http_port": 0, "log_level": "warning"}
        super().__init__(database_url, directory, **{**chosen, **settings})

    def arm(self, faults: str) -> None:
        """Lets the next start have these fault points; none when it names none."""
        self._environment["KAGZI_FAULTS"] = faults

    def kill(self) -> None:
        """Returns when it is dead."""
        self.send(signal.SIGKILL)
        self.wait(10)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.running:
            self.kill()


def _free_port() -> int:
    """Below the range of outgoing connections, one of which could take it while the server is away."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
