"""The workers of an environment, one for each queue. They are workers like any other, except that no run waits in
place: every wait gives the run back, so that the virtual clock governs it. They tell when a run arrives and when none
is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar

from kagzi.automations.run import HandlerRun
from kagzi.sdk.codec import Codec
from kagzi.sdk.definition import Workflow
from kagzi.sdk.execution import Execution
from kagzi.sdk.lease import Run
from kagzi.sdk.pending import State
from kagzi.sdk.post import DEFAULT_QUEUE
from kagzi.sdk.shift import Shift
from kagzi.sdk.worker import Worker

T = TypeVar("T")


class Hand(Worker):
    """One worker of an environment; it sets `stirred` when it takes a run."""

    def __init__(self, target: str, stirred: asyncio.Event, **options: Any) -> None:
        # Whatever a body does when its test is over, nobody waits for it.
        super().__init__(target, drain_timeout=0, **options)
        self._stirred = stirred

    def _begin(self) -> Shift:
        shift = super()._begin()
        shift.in_place_us = 0
        shift.stirred = self._stirred.set
        return shift

    @property
    def workflows(self) -> Collection[str]:
        """The names of what it runs."""
        return self._post.workflows

    @property
    def holds(self) -> bool:
        """Whether it has a run in its hands."""
        return self._shift is not None and len(self._shift.leases) > 0

    async def idle(self) -> None:
        """Waits until it holds nothing."""
        if self._shift is not None:
            await self._shift.idle()

    def bodies(self) -> list[str]:
        """The step bodies that run, for people."""
        leases = self._shift.leases.all() if self._shift is not None else []
        return [body for lease in leases for body in _bodies(lease.execution)]


def _bodies(run: Run | None) -> list[str]:
    if isinstance(run, HandlerRun) and run.body_of:
        return [f"{run.body_of!r} of run {run.run_id} ({run.handler.automation.name}.{run.handler.name})"]
    if isinstance(run, Execution):
        running = [step.step_id for step in run.agenda.open.values() if step.state is State.RUNNING]
        return [f"{step_id!r} of run {run.run_id} ({run.workflow_type})" for step_id in running]
    return []


def crew(
    target: str,
    stirred: asyncio.Event,
    *,
    workflows: Iterable[Workflow[Any, Any]],
    automations: Iterable[object],
    concurrency: int,
    residents: int | None,
    namespace: str,
    codecs: Sequence[Codec],
) -> list[Hand]:
    """A worker for each queue that a workflow or automation is declared for, and one for those that name none."""
    given = (list(workflows), list(automations))
    queues = {getattr(each, "queue", None) or DEFAULT_QUEUE: None for several in given for each in several}
    return [
        Hand(
            target,
            stirred,
            workflows=_of(queue, given[0]),
            automations=_of(queue, given[1]),
            queue=queue,
            concurrency=concurrency,
            residents=residents,
            namespace=namespace,
            codecs=codecs,
        )
        for queue in queues
    ]


def _of(queue: str, several: Iterable[T]) -> list[T]:
    return [each for each in several if (getattr(each, "queue", None) or DEFAULT_QUEUE) == queue]
