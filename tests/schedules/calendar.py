"""A calendar for tests: a database whose clock a test sets, the services of schedules as objects, and any number of
firing loops that do nothing by themselves. Nothing here waits for time to pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1 import schedule_pb2 as pb
from kagzi.protocol.v1.common_pb2 import ErrorDetail, Payload
from kagzi.server.announcer import Announcer
from kagzi.server.api.schedules import Context, Schedules
from kagzi.server.firing import Firing
from kagzi.server.notifier import Notifier
from kagzi.server.settings import Settings
from kagzi.store.database import Database
from kagzi.store.errors import Refused
from kagzi.store.operation import Outcome
from tests.laws import operations
from tests.laws.operations import NAMESPACE, QUEUE, TYPE, Run
from tests.laws.world import World

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
CLOCK = f"""
delete from kagzi.workflow_runs; delete from kagzi.workflow_payloads; delete from kagzi.step_runs;
delete from kagzi.signals; delete from kagzi.workers; delete from kagzi.stats;
delete from kagzi.namespaces where namespace <> 'default';
update kagzi.namespaces set enabled = true;
create table if not exists kagzi.still_clock (moment timestamptz not null);
delete from kagzi.still_clock;
insert into kagzi.still_clock values ('{NOON.isoformat()}');
create or replace function kagzi.now() returns timestamptz language sql stable parallel safe
    as 'select moment from kagzi.still_clock';
"""  # noqa: S608 - the tests' own words
_NO_CONTEXT = cast("Context", None)


class Calendar(World):
    """Schedules on a database with a clock of the test's own."""

    def __init__(self, database: Database, connection: Connection, url: str) -> None:
        super().__init__(database, connection, url)
        self.now = NOON
        self.announcer = Announced(Notifier(url))
        self.api = Schedules(database, self.announcer, "UTC")
        self._servers: list[Firing] = []
        self.firing = self.server()

    def server(self, **settings: Any) -> Firing:
        """The firing loop of one more server on the database; it does nothing by itself."""
        self._servers.append(Firing(self.database, Notifier(self.url), self.announcer, Settings(**settings)))
        return self._servers[-1]

    async def close(self) -> None:
        """No server tries anything any more."""
        for server in self._servers:
            await server.stop()

    async def set(self, moment: datetime) -> None:
        """It is this time now."""
        self.now = moment
        await self.connection.execute("update kagzi.still_clock set moment = $1", moment)

    async def skip(self, **units: float) -> None:
        """It is so much later now, and nobody has fired meanwhile."""
        await self.set(self.now + timedelta(**units))

    async def fire(self) -> None:
        """The loop does what is due."""
        await self.firing.fire_due()

    async def go(self, **units: float) -> None:
        """Time passes, and whatever becomes due on the way fires at its time."""
        until = self.now + timedelta(**units)
        while True:
            at = await self.connection.fetchval(
                "select min(available_at) from kagzi.workflow_runs where status = 'SCHEDULED' and available_at > $1",
                self.now,
            )
            if at is None or at > until:
                break
            await self.set(at)
            await self.fire()
        await self.set(until)

    async def create(self, schedule_id: str = "nightly", **fields: Any) -> pb.Schedule:
        """A schedule of the usual workflow; every hour, unless told otherwise."""
        request = self.request(schedule_id, **fields)
        return (await self.api.CreateSchedule(request, _NO_CONTEXT)).schedule

    @staticmethod
    def request(schedule_id: str = "nightly", **fields: Any) -> pb.CreateScheduleRequest:
        given: dict[str, Any] = {"workflow_type": TYPE, "task_queue": QUEUE, "timing": cron("0 * * * *"), **fields}
        return pb.CreateScheduleRequest(schedule_id=schedule_id, **given)

    async def get(self, schedule_id: str = "nightly") -> pb.Schedule:
        request = pb.GetScheduleRequest(schedule_id=schedule_id)
        return (await self.api.GetSchedule(request, _NO_CONTEXT)).schedule

    async def update(self, schedule_id: str = "nightly", **fields: Any) -> pb.Schedule:
        request = pb.UpdateScheduleRequest(schedule_id=schedule_id, **fields)
        return (await self.api.UpdateSchedule(request, _NO_CONTEXT)).schedule

    async def pause(self, schedule_id: str = "nightly", reason: str = "") -> pb.Schedule:
        request = pb.PauseScheduleRequest(schedule_id=schedule_id, reason=reason)
        return (await self.api.PauseSchedule(request, _NO_CONTEXT)).schedule

    async def resume(self, schedule_id: str = "nightly") -> pb.Schedule:
        return (await self.api.ResumeSchedule(pb.ResumeScheduleRequest(schedule_id=schedule_id), _NO_CONTEXT)).schedule

    async def delete(self, schedule_id: str = "nightly", **fields: Any) -> str:
        request = pb.DeleteScheduleRequest(schedule_id=schedule_id, **fields)
        return (await self.api.DeleteSchedule(request, _NO_CONTEXT)).template_run_id

    async def trigger(self, schedule_id: str = "nightly", **fields: Any) -> pb.TriggerScheduleResponse:
        return await self.api.TriggerSchedule(pb.TriggerScheduleRequest(schedule_id=schedule_id, **fields), _NO_CONTEXT)

    async def backfill(
        self, since: datetime, until: datetime | None = None, schedule_id: str = "nightly", **fields: Any
    ) -> pb.BackfillScheduleResponse:
        request = pb.BackfillScheduleRequest(schedule_id=schedule_id, **fields)
        request.since.FromDatetime(since)
        if until is not None:
            request.until.FromDatetime(until)
        return await self.api.BackfillSchedule(request, _NO_CONTEXT)

    async def preview(self, **fields: Any) -> pb.PreviewScheduleResponse:
        return await self.api.PreviewSchedule(pb.PreviewScheduleRequest(**fields), _NO_CONTEXT)

    async def history(self, **fields: Any) -> pb.ListScheduleRunsResponse:
        return await self.api.ListScheduleRuns(pb.ListScheduleRunsRequest(**fields), _NO_CONTEXT)

    async def listed(self, **fields: Any) -> pb.ListSchedulesResponse:
        return await self.api.ListSchedules(pb.ListSchedulesRequest(**fields), _NO_CONTEXT)

    async def runs(self, schedule_id: str = "nightly") -> list[Record]:
        """The runs of a schedule that exists, by slot; `waits` for the one before."""
        return await self.connection.fetch(
            "select r.*, r.available_at = 'infinity' as waits from kagzi.workflow_runs r"
            " join kagzi.workflow_runs t on t.run_id = r.schedule_id and t.external_id = $1"
            " where t.status in ('SCHEDULED', 'PAUSED') order by r.scheduled_for nulls last, r.created_at, r.run_id",
            schedule_id,
        )

    async def slots(self, schedule_id: str = "nightly") -> list[str]:
        """The slots that have a run, as times of the day; of another day with the date."""
        return [shown(row["scheduled_for"]) for row in await self.runs(schedule_id)]

    async def take(self) -> Run:
        """A worker takes the one run that is due."""
        [run] = await self.due()
        return run

    async def due(self) -> list[Run]:
        """A worker takes what is due; leases that ended in skipped time are still theirs."""
        return await self.claim(10, expired_too=False)

    async def end(self, run: Run) -> Any:
        """The run completes."""
        return await self.ask(operations.complete(run))


class Announced(Announcer):
    """Tells nobody, and remembers what it was told."""

    def __init__(self, notifier: Notifier) -> None:
        super().__init__(notifier)
        self.outcomes: list[Outcome] = []
        self.clocks = 0

    def announce(self, namespace: str, outcome: Outcome) -> None:
        assert namespace == NAMESPACE
        self.outcomes.append(outcome)
        super().announce(namespace, outcome)

    def clock(self, namespace: str) -> None:
        self.clocks += 1
        super().clock(namespace)


class refused:  # noqa: N801 - reads as a statement
    """Expects what is inside to be refused with this code, blaming this field."""

    def __init__(self, code: ErrorDetail.Code.ValueType, field: str | None = None) -> None:
        self.said = ErrorDetail()
        self._code = code
        self._field = field

    def __enter__(self) -> ErrorDetail:
        return self.said

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if error is None:
            pytest.fail("it was not refused")
        if not isinstance(error, Refused):
            return False
        self.said.CopyFrom(error.detail)
        assert self.said.code == self._code, self.said
        assert self._field is None or self.said.field == self._field, self.said
        assert self.said.message
        return True


def cron(expression: str) -> pb.ScheduleTiming:
    return pb.ScheduleTiming(cron=expression)


def every(**units: float) -> pb.ScheduleTiming:
    return pb.ScheduleTiming(every_ms=int(timedelta(**units).total_seconds() * 1_000))


def payload(text: str) -> Payload:
    return Payload(data=text.encode())


def shown(moment: datetime | None) -> str:
    if moment is None:
        return "-"
    return f"{moment:%H:%M:%S}" if moment.date() == NOON.date() else f"{moment:%Y-%m-%d %H:%M:%S}"


def times(*moments: Any) -> Sequence[str]:
    """Timestamps of messages, as `shown`."""
    return [shown(moment.ToDatetime(UTC)) for moment in moments]
