"""A rehearsal: every `prepare` of an automation is called against empty topics, and what comes back is checked as a
worker checks it. Nothing is published, reserved or mutated, and there is no server; the outside is read for real.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kagzi.automations import prepared
from kagzi.automations.checks import Finding
from kagzi.automations.contexts import PrepareContext
from kagzi.automations.events import Event
from kagzi.automations.handlers import Consumer
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
    stage: Any = _Stage(consumer)
    context = PrepareContext(stage, _Empty(stage))
    try:
        limit = _LONGEST_SECS if consumer.timeout is None else consumer.timeout.total_seconds()
        async with asyncio.timeout(limit):
            given = await consumer.bound("prepare")(context, None)
        work = prepared.checked(given, consumer.name, consumer.subscribes)
        payload.encode(work.data, Any)
    except Transient as error:
        return Finding("warning", consumer.name, "rehearsal", f"`prepare` could not be rehearsed: {error}")
    except Exception as error:  # noqa: BLE001 - whatever it raises is what would end its runs
        return Finding("error", consumer.name, "rehearsal", f"`prepare` raised {type(error).__name__}: {error}")
    finally:
        context.close()
    if work.reserved:
        topics = ", ".join(map(repr, work.reserve))
        return Finding("error", consumer.name, "rehearsal", f"it reserved events of {topics}, which were empty")
    return None
