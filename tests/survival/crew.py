"""Workers as processes of their own, started with the command that users have; to be killed, stopped and replaced. Each
has a name, which its step bodies write into the effects log, and the time of its death is kept for the checker.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.house.tree import ROOT
from tests.survival import effects

PROGRAM = "tests.survival.program"
_CONNECTED = "connected to"


class WorkerProcess:
    """`kagzi worker` on a program."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **environment, effects.WORKER: name},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def connected(self) -> bool:
        return self.said(_CONNECTED)

    def said(self, words: str) -> bool:
        return words in self.log.read_text(encoding="utf-8")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


class Crew:
    """The workers of one test. `deaths` says between which two moments each killed one died."""

    def __init__(self, address: str, directory: Path, *options: str, program: str = PROGRAM) -> None:
        self.effects = directory / "effects.jsonl"
        self.deaths: dict[str, tuple[int, int]] = {}
        self.workers: list[WorkerProcess] = []
        self._directory = directory
        self._command = [sys.executable, "-c", "from kagzi.cli import main; main()", "worker", program]
        self._options = ["--url", address, *options]
        self._numbers = itertools.count(1)

    def hire(self, *options: str, **environment: str) -> WorkerProcess:
        """One more worker; it may not be connected yet."""
        name = f"worker-{next(self._numbers)}"
        command = [*self._command, *self._options, *options]
        variables = {effects.FILE: str(self.effects), **environment}
        worker = WorkerProcess(name, command, variables, self._directory / f"{name}.log")
        self.workers.append(worker)
        return worker

    def kill(self, worker: WorkerProcess) -> None:
        """SIGKILL; returns when it is dead."""
        before = time.monotonic_ns()
        worker.process.kill()
        worker.process.wait()
        self.deaths[worker.name] = (before, time.monotonic_ns())
        self.workers.remove(worker)

    def entries(self) -> list[effects.Entry]:
        return effects.read(self.effects)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:
            if worker.running:
                worker.send(signal.SIGCONT)
                worker.process.kill()
            worker.process.wait()
        if error is not None:
            for worker in self.workers:
                sys.stderr.write(f"{worker.name} said:\n{worker.log.read_text(encoding='utf-8')[-2_000:]}\n")


@contextlib.contextmanager
def stopped(worker: WorkerProcess) -> Iterator[None]:
    """The process stands still meanwhile."""
    worker.send(signal.SIGSTOP)
    try:
        yield
    finally:
        worker.send(signal.SIGCONT)
