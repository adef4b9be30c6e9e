"""A rehearsal: every `prepare` of an automation is called against empty topics, and what comes back is checked as a
worker checks it; then `next`, which also runs when nothing was reserved. Nothing is published, reserved or mutated, and
there is no server; the outside is read for real.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kagzi.automations import prepared
from kagzi.automations.checks import Finding
from kagzi.automations.contexts import HandlerContext, NextContext, PrepareContext
from kagzi.automations.events import Event
from kagzi.automations.faults import place_of
from kagzi.automations.handlers import Consumer
from kagzi.automations.mutation import open_phase
from kagzi.automations.outcome import Outcome
from kagzi.automations.prepared import Prepared
from kagzi.automations.topics import Topics
from kagzi.sdk import payload
from kagzi.sdk.errors import Transient

if TYPE_CHECKING:
    from kagzi.automations.automation import Automation

# For a `prepare` that has no limit of its own.
_LONGEST_SECS = 60.0


class _Stage:
    """What a context needs of a run, without one."""

    run_id = "rehearsal"
    trigger = "deploy"

    def __init__(self, handler: Consumer) -> None:
        self.handler = handler
        self.host = self
        self.namespace = "default"
        name = f"kagzi.automation.{handler.automation.name}.{handler.name}"
        self.logger = logging.LoggerAdapter(logging.getLogger(name), {"run_id": self.run_id})

    def now(self) -> datetime:
        return datetime.now(UTC)

    def encode(self, value: Any, annotation: Any, role: str) -> Any:  # noqa: ARG002 - nothing is stored
        return payload.encode(value, annotation)


class _Empty(Topics):
    """Topics without events."""

    async def peek(self, topic: str, limit: int) -> list[Event]:  # noqa: ARG002 - every topic is empty
        return []

    async def get(self, topic: str, ids: Sequence[str]) -> list[Event]:  # noqa: ARG002 - every topic is empty
        return []


async def rehearse(automation: Automation) -> list[Finding]:
    """What went wrong with each consumer; empty when all is well."""
    found = [await _rehearse(handler) for handler in automation.handlers if isinstance(handler, Consumer)]
    return [finding for finding in found if finding is not None]


async def _rehearse(consumer: Consumer) -> Finding | None:
    limit = _LONGEST_SECS if consumer.timeout is None else consumer.timeout.total_seconds()
    phase = "prepare"
    try:
        async with asyncio.timeout(limit):
            work = await _prepare(consumer)
            if work.reserved:
                topics = ", ".join(map(repr, work.reserve))
                return Finding("error", consumer.name, "rehearsal", f"it reserved events of {topics}, which were empty")
            phase = "next"
            await _next(consumer, work)
    except Transient as error:
        return Finding("warning", consumer.name, "rehearsal", f"`{phase}` could not be rehearsed: {error}")
    except Exception as error:  # noqa: BLE001 - whatever it raises is what would end its runs
        why = ", with nothing reserved: look at `outcome.applied` first" if phase == "next" else ""
        place = f" ({found})" if (found := place_of(error)) else ""
        message = f"`{phase}` raised {type(error).__name__}: {error}{place}{why}"
        return Finding("error", consumer.name, "rehearsal", message)
    return None


async def _prepare(consumer: Consumer) -> Prepared:
    stage: Any = _Stage(consumer)
    context = PrepareContext(stage, _Empty(stage))
    with _phase("prepare", consumer, context):
        given = await consumer.bound("prepare")(context, None)
    work = prepared.checked(given, consumer.name, consumer.subscribes)
    payload.encode(work.data, Any)
    return work


async def _next(consumer: Consumer, work: Prepared) -> None:
    if not consumer.has("next"):
        return
    stage: Any = _Stage(consumer)
    context = NextContext(stage, None)
    with _phase("next", consumer, context):
        state = consumer.bound("next")(context, work, Outcome("none"))
        if inspect.isawaitable(state):
            await state


@contextmanager
def _phase(name: str, consumer: Consumer, context: HandlerContext) -> Iterator[None]:
    """As on a worker: no mutation is called by a phase itself, and the context ends with it."""
    phase = open_phase.set(f"`{name}` of {consumer.name!r}")
    try:
        yield
    finally:
        open_phase.reset(phase)
        context.close()
