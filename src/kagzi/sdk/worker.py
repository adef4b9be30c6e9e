"""`Worker`: runs workflows. It takes runs from one queue, as many at a time as it is told, until it is asked to stop;
then it drains: takes no more, lets what it holds get on for a while, gives the rest back and says goodbye. It never
ends because a server or its database is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.sdk.certificates import Tls
from kagzi.sdk.codec import Codec
from kagzi.sdk.definition import Workflow
from kagzi.sdk.duration import Duration
from kagzi.sdk.execution import Execution
from kagzi.sdk.lease import Run
from kagzi.sdk.post import Post
from kagzi.sdk.served import Served
from kagzi.sdk.shift import Execute, Shift

log = logging.getLogger("kagzi.worker")


def execute(delivery: pb.Delivery, served: Workflow[Any, Any] | Served, shift: Shift) -> Run:
    """The execution of a delivered run."""
    if isinstance(served, Workflow):
        return Execution(delivery, served, shift)
    return served.execute(delivery, shift)


class Worker:
    """A worker for one queue. What is not given comes from KAGZI_URL, KAGZI_NAMESPACE, KAGZI_API_KEY, KAGZI_QUEUE,
    KAGZI_CONCURRENCY, KAGZI_RESIDENTS and KAGZI_DRAIN_TIMEOUT, or is the default.

    `concurrency` is how many runs it holds at once, `residents` how many more that wait for something stay in memory,
    to go on from there: with 0, and beyond the number, a run that waits is closed and replayed when it wakes.

    `target` may name several servers, as "a:50051,b:50051": when one goes away the worker goes on at the next.
    """

    def __init__(
        self,
        target: str | None = None,
        *,
        workflows: Iterable[Workflow[Any, Any]] = (),
        automations: Iterable[object] = (),
        queue: str | None = None,
        concurrency: int | None = None,
        residents: int | None = None,
        namespace: str | None = None,
        api_key: str | None = None,
        tls: Tls = None,
        codecs: Sequence[Codec] = (),
        drain_timeout: Duration | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._post = Post.resolve(
            target,
            workflows=workflows,
            automations=automations,
            queue=queue,
            concurrency=concurrency,
            residents=residents,
            namespace=namespace,
            api_key=api_key,
            tls=tls,
            codecs=codecs,
            drain_timeout=drain_timeout,
            labels=labels,
        )
        self._execute: Execute = execute
        self._shift: Shift | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Works until SIGTERM or SIGINT, or until `stop`; then drains. A second signal gives everything back at once.
        Raises ServerError when a server refuses this worker the first time it says hello.
        """
        with self._signals():
            await self._work(self._begin())

    def stop(self) -> None:
        """Asks the worker to drain, and the second time to hurry."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def __aenter__(self) -> Self:
        """Works in the background. Waits until a server has answered, or could not be reached."""
        shift = self._begin()
        self._task = asyncio.create_task(self._work(shift), name="kagzi-worker")
        tried = asyncio.create_task(shift.link.tried.wait())
        try:
            await asyncio.wait({tried, self._task}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        finally:
            tried.cancel()
        if self._task.done():
            self._task.result()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drains; at once when the block failed."""
        assert self._task is not None
        self.stop()
        if kind is not None:
            self._hurry.set()
        await self._task

    def _begin(self) -> Shift:
        if self._shift is not None:
            raise RuntimeError("this worker runs already: make another Worker to run two")
        self._shift = Shift(self._post, self._execute)
        return self._shift

    async def _work(self, shift: Shift) -> None:
        shift.heartbeat.start()
        link = asyncio.create_task(shift.link.run(), name="kagzi-link")
        asked = [asyncio.create_task(event.wait()) for event in (self._stop, shift.drain_asked)]
        try:
            # The link ends by itself only when it is refused.
            await asyncio.wait({link, *asked}, return_when=asyncio.FIRST_COMPLETED)
            if link.done():
                link.result()
            await shift.drain(self._hurry)
        except asyncio.CancelledError:
            # Whoever cancels wants it to end now: what is held is given back all the same.
            self._hurry.set()
            await shift.drain(self._hurry)
            raise
        finally:
            for task in (link, *asked):
                task.cancel()
            await asyncio.gather(link, *asked, return_exceptions=True)
            await shift.close()
            self._shift = None
            # Of another loop, perhaps, the next time.
            self._stop = asyncio.Event()
            self._hurry = asyncio.Event()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        taken = []
        for number in (signal.SIGTERM, signal.SIGINT):
            # Elsewhere than in the main thread, and on some systems, whoever runs the worker calls `stop`.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self._signalled, number)
                taken.append(number)
        try:
            yield
        finally:
            for number in taken:
                loop.remove_signal_handler(number)

    def _signalled(self, number: signal.Signals) -> None:
        log.info("%s: %s", number.name, "stopping at once" if self._stop.is_set() else "draining")
        self.stop()
