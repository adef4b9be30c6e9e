"""Servers as processes of their own, started with the command that users have. Everything is told by the environment,
and what a server says is kept in a file for the moment a test fails.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

_READY = "Kagzi listens on "
# A busy machine takes its time; whoever ends without serving is noticed at once.
_READY_WITHIN = 120.0


class ServerProcess:
    """`kagzi server` on a database; `settings` are variables without their prefix."""

    def __init__(self, database_url: str, directory: Path, **settings: object) -> None:
        self._directory = directory
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("KAGZI_")},
            "KAGZI_DB_URL": database_url,
            "KAGZI_SERVER_PORT": "0",
            "KAGZI_HTTP_PORT": "0",
            **{f"KAGZI_{name.upper()}": str(value) for name, value in settings.items()},
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    @property
    def log(self) -> Path:
        return self._directory / "server.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it serves."""
        self._directory.mkdir(parents=True, exist_ok=True)
        said = self._directory / "server.out"
        with said.open("wb") as out, self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from kagzi.cli import main; main()", "server"],
                env=self._environment,
                cwd=self._directory,
                stdout=out,
                stderr=log,
            )
        until = time.monotonic() + _READY_WITHIN
        while _READY not in (words := said.read_text()):
            if not self.running or time.monotonic() > until:
                raise AssertionError(f"the server did not start: {self.log.read_text()[-2_000:]}")
            time.sleep(0.01)
        self.address = words.split(_READY)[1].split()[0]

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, timeout: float) -> int:
        """The exit code."""
        assert self._process is not None
        return self._process.wait(timeout)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self.running:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
