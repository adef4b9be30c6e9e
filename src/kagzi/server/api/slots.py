"""The part of WorkflowScheduleService that deals with slots and runs: trigger, backfill, preview, history. What starts
runs does so under the template's lock, as firing does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import grpc
import uuid_utils
from asyncpg.connection import Connection

from kagzi.protocol.v1 import schedule_pb2 as pb
from kagzi.protocol.v1.common_pb2 import PAUSED, SCHEDULED, RunStatus
from kagzi.protocol.v1.schedule_pb2_grpc import WorkflowScheduleServiceServicer
from kagzi.protocol.v1.workflow_pb2 import WorkflowRun
from kagzi.server import planner
from kagzi.server.announcer import Announcer
from kagzi.server.api import checks, drafts
from kagzi.server.api.drafts import SCHEDULE_BYTES
from kagzi.store import launches, namespaces, rows, schedules, templates
from kagzi.store.database import Database
from kagzi.store.errors import invalid, not_found
from kagzi.store.launches import Filled
from kagzi.store.operation import Outcome
from kagzi.store.templates import CANCEL_PREVIOUS, QUEUE_ONE, SKIP, Template

Context = grpc.aio.ServicerContext[Any, Any]
T = TypeVar("T")

_BACKFILL = 1_000
_COUNTED = 100_000
_PREVIEWED = 1_000
_INSTANT = timedelta(microseconds=1)
# Under these few slots of a range have their run: the newest.
_NEWEST = (SKIP, QUEUE_ONE, CANCEL_PREVIOUS)


class Slots(WorkflowScheduleServiceServicer):
    """Starts runs of schedules beside their slots, and shows slots and runs. `timezone` is for those that name none."""

    def __init__(self, database: Database, announcer: Announcer, timezone: str) -> None:
        self._database = database
        self._announcer = announcer
        self._timezone = timezone

    async def TriggerSchedule(self, request: pb.TriggerScheduleRequest, context: Context) -> pb.TriggerScheduleResponse:
        namespace, schedule_id = key(request)
        run_id = checks.uuid(request.run_id, "run_id", required=False) or str(uuid_utils.uuid7())
        given = checks.payload(request.input, "input") if request.HasField("input") else None
        policy = drafts.overlap(request.overlap) if request.HasField("overlap") else None

        async def trigger(connection: Connection, outcome: Outcome) -> str | None:
            await namespaces.require(connection, namespace)
            template, _ = await schedules.lock(connection, namespace, schedule_id)
            return await launches.trigger(connection, template, run_id, policy or template.overlap, given, outcome)

        status = await self._transact(namespace, trigger)
        if status is None:
            return pb.TriggerScheduleResponse(skipped=True)
        return pb.TriggerScheduleResponse(run_id=run_id, status=rows.RUN_STATUS[status])

    async def BackfillSchedule(
        self, request: pb.BackfillScheduleRequest, context: Context
    ) -> pb.BackfillScheduleResponse:
        namespace, schedule_id = key(request)
        since, until = _range(request)
        policy = drafts.overlap(request.overlap, backfill=True)
        template, _, now = await self._database.read(lambda c: schedules.get(c, namespace, schedule_id))
        if since >= now:
            raise invalid("since", f"since, {since}, lies in the future: slots of the past are made up for")
        until = now if until is None else min(until, now)
        found, total = await _planned(template, since, until, policy)

        async def backfill(connection: Connection, outcome: Outcome) -> dict[datetime, Filled]:
            nonlocal template, found, total
            if not request.dry_run:
                await namespaces.require(connection, namespace)
                locked, _ = await schedules.lock(connection, namespace, schedule_id)
                if locked.run_id != template.run_id:
                    raise not_found("schedule", schedule_id, "schedule_id")
                if locked != template:
                    # Changed since it was read: only what stands under the lock counts.
                    template = locked
                    found, total = await _planned(template, since, until, policy)
            slots = found[:_BACKFILL]
            return await launches.backfill(connection, template, slots, policy, outcome, dry_run=request.dry_run)

        made = await self._transact(namespace, backfill)
        there = sum(one.existed for one in made.values())
        skipped = sum(one.skipped for one in made.values())
        return pb.BackfillScheduleResponse(
            slots=[
                pb.BackfillScheduleResponse.Slot(
                    scheduled_for=rows.timestamp(slot),
                    run_id=made[slot].run_id,
                    already_exists=made[slot].existed,
                    skipped=made[slot].skipped,
                )
                for slot in sorted(made)
            ],
            started=len(made) - there - skipped,
            already_exist=there,
            skipped=skipped,
            total=total,
            continue_from=rows.timestamp(found[_BACKFILL]) if len(found) > _BACKFILL else None,
        )

    async def PreviewSchedule(self, request: pb.PreviewScheduleRequest, context: Context) -> pb.PreviewScheduleResponse:
        namespace = checks.namespace(request.namespace)
        if not 0 <= request.count <= _PREVIEWED:
            raise invalid("count", f"count is {request.count}, and must be from 1 to {_PREVIEWED}, or 0 for 10")
        after = checks.timestamp(request.after, "after") if request.HasField("after") else None

        async def read(connection: Connection) -> tuple[Template, datetime]:
            if request.WhichOneof("subject") == "schedule_id":
                _, schedule_id = key(request)
                template, _, now = await schedules.get(connection, namespace, schedule_id)
                return template, now
            await namespaces.get(connection, namespace)
            now = await schedules.clock(connection)
            return drafts.proposed(request, self._timezone, now), now

        template, now = await self._database.read(read)
        begin = now if after is None else after
        fires = drafts.readable(template, lambda: list(islice(planner.slots(template, begin), request.count or 10)))
        zone = drafts.readable(template, lambda: ZoneInfo(template.timezone))
        return pb.PreviewScheduleResponse(
            fires=[
                pb.PreviewScheduleResponse.Fire(
                    scheduled_for=rows.timestamp(slot), local=slot.astimezone(zone).isoformat()
                )
                for slot in fires
            ],
            timing=templates.timing(template.cron, template.every),
            words=template.words,
            timezone=template.timezone,
        )

    async def ListScheduleRuns(
        self, request: pb.ListScheduleRunsRequest, context: Context
    ) -> pb.ListScheduleRunsResponse:
        namespace = checks.namespace(request.namespace)
        scope = checks.scope(request, namespace)
        page = checks.page(request.page_size, request.page_token, scope)
        statuses = _statuses(request.statuses)
        template_id = checks.uuid(request.template_run_id, "template_run_id", required=False)
        if template_id and request.schedule_id:
            raise invalid("template_run_id", "name the schedule by schedule_id or by template_run_id, not by both")
        schedule_id = "" if template_id else key(request)[1]
        after = (rows.moment(int(page.after[0])), str(page.after[1])) if page.after else (None, None)

        async def read(connection: Connection) -> list[WorkflowRun]:
            if template_id:
                await schedules.require_template(connection, namespace, template_id)
                subject = template_id
            else:
                subject = (await schedules.get(connection, namespace, schedule_id))[0].run_id
            return await schedules.history(
                connection, namespace, subject, page.size + 1, statuses=statuses, after=after
            )

        found = await self._database.read(read)
        shown = found[: page.size]
        token = ""
        if len(found) > page.size:
            token = checks.page_token(scope, (shown[-1].created_at.ToMicroseconds(), shown[-1].run_id))
        return pb.ListScheduleRunsResponse(runs=shown, next_page_token=token)

    async def _transact(self, namespace: str, work: Callable[[Connection, Outcome], Awaitable[T]]) -> T:
        """Runs `work` in one transaction and tells of its outcome once that is committed."""

        async def transaction(connection: Connection) -> tuple[T, Outcome]:
            outcome = Outcome()
            return await work(connection, outcome), outcome

        answer, outcome = await self._database.transact(transaction)
        self._announcer.announce(namespace, outcome)
        return answer


def key(request: Any) -> tuple[str, str]:
    """The namespace of a request and the schedule it names."""
    schedule_id = checks.name(request.schedule_id, "schedule_id", maximum=SCHEDULE_BYTES)
    return checks.namespace(request.namespace), schedule_id


def _statuses(given: Iterable[int]) -> list[str] | None:
    names = []
    for status in given:
        checks.enum(status, RunStatus, "statuses", required=True)
        if status in (SCHEDULED, PAUSED):
            raise invalid("statuses", "SCHEDULED and PAUSED belong to schedules, and this lists runs")
        names.append(rows.RUN_STATUS_NAME[RunStatus.ValueType(status)])
    return names or None


def _range(request: pb.BackfillScheduleRequest) -> tuple[datetime, datetime | None]:
    """From the first moment of a backfill to the one behind its last; None is now."""
    if not request.HasField("since"):
        raise invalid("since", "since is missing: say from when on slots are to be made up for")
    since = checks.timestamp(request.since, "since")
    until = checks.timestamp(request.until, "until") if request.HasField("until") else None
    if until is not None and since >= until:
        raise invalid("since", f"since, {since}, must be before until, {until}")
    return since, until


async def _planned(template: Template, since: datetime, until: datetime, policy: str) -> tuple[list[datetime], int]:
    """The slots of a range that a backfill deals with at once and one more, and how many there are."""
    found, total = drafts.readable(template, lambda: _backfilled(template, since, until))
    if total > _BACKFILL:
        total = await asyncio.to_thread(_count, planner.slots(template, since - _INSTANT), until)
        if policy in _NEWEST:
            found = planner.newest(template, since, until - _INSTANT, _BACKFILL)
    return found, total


def _backfilled(template: Template, since: datetime, until: datetime) -> tuple[list[datetime], int]:
    """The first slots of a range, one more than are made up for at once, and how many these are."""
    found = []
    for slot in islice(planner.slots(template, since - _INSTANT), _BACKFILL + 1):
        if slot >= until:
            break
        found.append(slot)
    return found, len(found)


def _count(every: Iterable[datetime], until: datetime) -> int:
    """How many slots lie before a moment, up to a limit."""
    return sum(1 for _ in islice(takewhile(lambda slot: slot < until, every), _COUNTED))
