"""The virtual clock of a test database. `kagzi.now()` there is the time plus what was skipped, one number in one row.
It moves in hops from one due time to the next, each in one transaction that excludes every other writer, finds nothing
moving, and carries along what must not grow old: leases and heartbeats. It never goes back.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import asyncpg
from asyncpg.connection import Connection

from kagzi.sdk.errors import KagziError
from kagzi.server.coordinator import GRACE
from kagzi.store.database import Database
from kagzi.store.errors import Unreachable

INSTALL = """
create table kagzi.virtual_clock (skipped_us bigint not null);
insert into kagzi.virtual_clock (skipped_us) values (0);

create or replace function kagzi.now() returns timestamptz
    language sql stable parallel safe
    as 'select statement_timestamp() + (select c.skipped_us from kagzi.virtual_clock c) * interval ''1 microsecond''';

-- What the workers of one process hold, what waits for them and is due, what is past its deadline and not dealt with,
-- messages that no server has heard, automations whose time has come, schedules that are due, and the next moment at
-- which something happens by itself. Locks nothing.
create function kagzi.activity(process integer, host text, grace interval,
                               out held bigint, out due bigint, out late bigint, out unheard bigint,
                               out ringing bigint, out slots bigint, out upcoming timestamptz)
    language sql stable
    as $$
    with live as (
        select r.namespace, r.task_queue, r.workflow_type, r.version, r.status, r.locked_by, r.available_at,
               case when r.cancel_requested_at is null or r.started_at is null or r.deadline_at is null
                    then r.deadline_at
                    else greatest(r.deadline_at, r.cancel_requested_at) + grace end as limit_at
        from kagzi.workflow_runs r
        where r.status in ('PENDING', 'RUNNING', 'SLEEPING')
           or (r.status = 'SCHEDULED'
               and exists (select 1 from kagzi.namespaces n where n.namespace = r.namespace and n.enabled))
    ), ours as (
        select w.namespace, w.worker_id, w.task_queue, w.types, w.type_versions, w.status
        from kagzi.workers w
        where w.pid = process and w.hostname = host
    ), seen as (
        select l.status, l.available_at, l.limit_at,
               l.status = 'RUNNING' and exists (
                   select 1 from ours o where o.namespace = l.namespace and o.worker_id = l.locked_by) as held,
               l.status in ('PENDING', 'SLEEPING') and l.available_at <= kagzi.now() and exists (
                   select 1 from ours o, unnest(o.types, o.type_versions) as t(name, version)
                   where o.namespace = l.namespace and o.task_queue = l.task_queue and o.status = 'ONLINE'
                     and t.name = l.workflow_type and l.version in ('', t.version)) as due
        from live l
    ), timed as (
        select h.due_at
        from kagzi.handlers h
        join kagzi.automations a on a.namespace = h.namespace and a.name = h.automation
        where h.due_at is not null and a.paused_at is null and a.blocked_code is null
          and not exists (select 1 from kagzi.workflow_runs r
                          where r.namespace = h.namespace and r.automation = h.automation
                            and r.status in ('PENDING', 'RUNNING', 'SLEEPING'))
    )
    select count(*) filter (where s.held), count(*) filter (where s.due),
           count(*) filter (where s.limit_at <= kagzi.now() and s.status <> 'SCHEDULED'),
           (select count(*) from kagzi.signals g where g.unheard),
           (select count(*) from timed t where t.due_at <= kagzi.now()),
           count(*) filter (where s.status = 'SCHEDULED' and s.available_at <= kagzi.now()),
           least((select min(t.due_at) from timed t where t.due_at > kagzi.now()),
                 min(s.available_at) filter (where s.available_at > kagzi.now() and s.available_at < 'infinity'
                                               and s.status <> 'RUNNING'),
                 min(s.limit_at) filter (where s.limit_at > kagzi.now() and s.status <> 'SCHEDULED'))
    from seen s
    $$;

-- Moves the clock to the next moment at which something happens, or to `until` if that is earlier; not at all while
-- something moves. Locks workers and runs against every other writer, in the order of heartbeats. Whoever waited for
-- these locks sees the new time: a statement takes its snapshot after its locks.
create function kagzi.hop(until timestamptz, process integer, host text, grace interval,
                          out stirring boolean, out skipped bigint, out reached timestamptz)
    language plpgsql
    as $$
    declare
        activity record;
        step_us bigint;
    begin
        lock table kagzi.workers, kagzi.workflow_runs in exclusive mode;
        select * into activity from kagzi.activity(process, host, grace);
        stirring := activity.held + activity.due + activity.late + activity.unheard + activity.ringing
                    + activity.slots > 0;
        step_us := case when stirring then 0 else
            extract(epoch from least(until, coalesce(activity.upcoming, until)) - kagzi.now()) * 1000000 end;
        if step_us > 0 then
            update kagzi.workers w set last_heartbeat_at = w.last_heartbeat_at + step_us * interval '1 microsecond'
            where w.status <> 'OFFLINE';
            update kagzi.workflow_runs r set available_at = r.available_at + step_us * interval '1 microsecond'
            where r.status = 'RUNNING';
            update kagzi.virtual_clock c set skipped_us = c.skipped_us + step_us;
        end if;
        skipped := (select c.skipped_us from kagzi.virtual_clock c);
        reached := kagzi.now();
    end
    $$;
"""

_MICROSECOND = timedelta(microseconds=1)
# Nothing of ours keeps its locks for so long; who does is the test itself.
_PATIENCE = 10.0


class Locked(KagziError):
    """Somebody holds a transaction open that keeps the clock from moving."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What goes on in a test database."""

    # Runs in the hands of this process's workers; due runs they could take; runs past a deadline; messages that were
    # stored in somebody's own transaction and not told yet; handlers of automations whose time has come.
    held: int
    due: int
    late: int
    unheard: int
    ringing: int
    # Schedules that are due.
    slots: int
    # When the next thing happens by itself; None when nothing will.
    upcoming: datetime | None

    @property
    def stirring(self) -> bool:
        """Whether something moves without time passing."""
        return self.held + self.due + self.late + self.unheard + self.ringing + self.slots > 0


class VirtualClock:
    """The clock of one test database, as this process knows and moves it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._skipped_us = 0
        self._us = (os.getpid(), socket.gethostname()[:255], GRACE)

    def now(self) -> datetime:
        """The time in the test database, which runs on this machine."""
        return datetime.now(UTC) + self._skipped_us * _MICROSECOND

    async def activity(self) -> Activity:
        """What goes on now."""

        async def look(connection: Connection) -> asyncpg.Record:
            row = await connection.fetchrow("select * from kagzi.activity($1, $2, $3)", *self._us)
            assert row is not None
            return row

        return Activity(**await self._database.read(look))

    async def hop(self, until: datetime) -> datetime | None:
        """Moves to the next due time, at most to `until`; answers the time it is then, or None when something moves."""

        async def move(connection: Connection) -> asyncpg.Record:
            # Whoever wants to write waits behind this one, so it does not wait for long at a time.
            await connection.execute("set local lock_timeout = '500ms'")
            row = await connection.fetchrow("select * from kagzi.hop($1, $2, $3, $4)", until, *self._us)
            assert row is not None
            return row

        try:
            hopped = await self._database.transact(move, _PATIENCE)
        except Unreachable as error:
            if not isinstance(error.__cause__, asyncpg.LockNotAvailableError):
                raise
            raise Locked(
                "The clock cannot move while a transaction on Kagzi's tables is open: commit it or roll it back before "
                "`env.skip(...)`."
            ) from error
        self._skipped_us = hopped["skipped"]
        reached: datetime = hopped["reached"]
        return None if hopped["stirring"] else reached
