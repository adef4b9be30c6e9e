"""A peer at work: its processes, and a client that starts runs when it is asked to. What differs between peers is how
they are started and how one sees that runs have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.peers.environment import PROGRAMS
from benchmarks.span import Parts, Span

_PATIENCE = 240.0

# How many runs have not ended yet, of so many that were started.
Unended = Callable[[int], Awaitable[int]]


@dataclass
class Stage:
    """A running peer."""

    client: subprocess.Popen[str]
    unended: Unended
    start_worker: Callable[[], list[subprocess.Popen[str]]]
    parts: Parts
    workers: list[subprocess.Popen[str]] = field(default_factory=list)
    started: int = 0

    def work(self) -> None:
        """Starts the workers; they are at work when they say so, or soon."""
        self.workers = self.start_worker()

    def rest(self) -> None:
        """Ends the workers."""
        for worker in self.workers:
            end(worker)
        self.workers = []

    def span(self) -> Span:
        """Time that is measured from `with` to its end."""
        workers = [worker.pid for worker in self.workers]
        return Span({"client": [self.client.pid], "worker": workers, **self.parts})

    async def start(self, workflow: str, count: int, given: int = 1) -> None:
        """Starts runs, a hundred at a time; returns when the peer has taken them all."""
        self.started += count
        await self._ask(do="start", workflow=workflow, count=count, input=given)

    async def execute(self, workflow: str, count: int, given: int = 1) -> list[float]:
        """Runs one after another from start to result; how long each took, in milliseconds."""
        answer = await self._ask(do="execute", workflow=workflow, count=count, input=given)
        self.started += count
        times: list[float] = answer["milliseconds"]
        return times

    async def ended(self, every: float = 0.05) -> None:
        """Returns when every run that was started has ended."""
        async with asyncio.timeout(_PATIENCE):
            while await self.unended(self.started):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(every)

    async def begun(self, unended: int) -> None:
        """Returns when fewer than so many have not ended."""
        async with asyncio.timeout(_PATIENCE):
            while await self.unended(self.started) >= unended:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)

    async def _ask(self, **order: Any) -> dict[str, Any]:
        assert self.client.stdin is not None
        self.client.stdin.write(json.dumps(order) + "\n")
        self.client.stdin.flush()
        return await heard(self.client)


async def heard(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line that a client says."""
    assert process.stdout is not None
    line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), _PATIENCE)
    if not line:
        raise RuntimeError(f"a client of a peer ended with {process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer


def spawn(*command: str | Path, log: IO[str], **environment: str) -> subprocess.Popen[str]:
    """A process of a peer; what it complains of is in the log."""
    return subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        cwd=PROGRAMS,
        env=_environment(environment),
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> None:
    """Ends a process in order, or by force if it does not, and whatever it started: an orphan would go on working."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2)
    # It leads a group of its own.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def logged(name: str) -> Any:
    """A file for complaints, shown when something fails."""
    with tempfile.TemporaryFile("w+", prefix=f"kagzi-bench-{name}-") as log:
        try:
            yield log
        except Exception as error:
            log.seek(0)
            error.add_note(f"{name} said last:\n" + "".join(log.readlines()[-15:]))
            raise


@contextlib.asynccontextmanager
async def closing(stage: Stage) -> AsyncIterator[Stage]:
    """Ends what the stage started."""
    try:
        yield stage
    finally:
        stage.rest()
        end(stage.client)


def _environment(given: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1", **given}
