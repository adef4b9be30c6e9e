"""Workers and the leases they hold: registration, heartbeats, draining and leaving. A lease is renewed by its
token alone and always set to now + its length; what a worker no longer holds is put back with no crash
counted. Nothing here claims a run. A worker's row is locked before any run's, and no lock on a held run is
waited for: a long transaction of somebody else delays its own run and never a heartbeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import uuid_utils
from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.store import namespaces, roster, rows
from kagzi.store.errors import precondition
from kagzi.store.queries import Queries
from kagzi.store.roster import ServedType, Worker

_sql = Queries("workers.sql")
_register = _sql.bind("register", columns=("worker_id", "status", "now"))
_release_parked = _sql.bind("release_parked")
_beat = _sql.bind("beat", columns=("status", "now", "lease_until"))
_renew = _sql.bind("renew", columns=("run_id", "token", "verdict", "cancelled"))
_put_back = _sql.bind("put_back", columns=("task_queue",))
_deregister = _sql.bind("deregister", columns=("worker_id",))
_drain = _sql.bind("drain", columns=("worker_id",))

# Parked runs released in one transaction: a registration must not take as long as there are runs to help.
RELEASED_AT_ONCE = 1_000

# A run and the token it is held by.
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Registered:
    """A worker is known. Its queue is to be woken when `released` is not 0."""

    worker_id: str
    # ONLINE, or DRAINING when it was asked to drain and has not said goodbye since.
    status: str
    now: datetime
    # Parked runs of its queue that are due now because it brings other code.
    released: int
    # There may be more: call `release_parked`, each time in a transaction of its own, until it answers 0.
    more_parked: bool


@dataclass(frozen=True, slots=True)
class Renewal:
    """What became of the named leases. A pair that is in none of these was renewed."""

    # Somebody else holds the run, or nobody does.
    lost: tuple[Pair, ...] = ()
    # This token's own operation gave the run back or ended it: the answer is on its way.
    ended: tuple[Pair, ...] = ()
    # Somebody has locked the row: not renewed, not lost, to be tried again soon.
    busy: tuple[Pair, ...] = ()
    # Runs among the renewed and the busy that are asked to cancel.
    cancelled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The answer to a heartbeat. `lease_until` is never later than the leases that were set."""

    now: datetime
    lease_until: datetime
    should_drain: bool
    renewal: Renewal
    # Queues of runs the worker did not name and that are due again.
    put_back: frozenset[str]


@dataclass(frozen=True, slots=True)
class Deregistered:
    """A worker is gone. Its lease ends what is in `busy`, unless `deregister` is called again."""

    released: int
    # Runs it held that somebody has locked.
    busy: int
    # Queues that have something due now.
    queues: frozenset[str]


async def register(
    connection: Connection,
    namespace: str,
    *,
    instance: str,
    task_queue: str,
    types: Sequence[ServedType],
    hostname: str = "",
    pid: int = 0,
    version: str = "",
    concurrency: int = 0,
    labels: dict[str, str] | None = None,
) -> Registered:
    """Makes a worker known, or known again: an instance has one id. Releases what its code may go on with."""
    [row] = await _register.fetch(
        connection,
        namespace=namespace,
        worker_id=str(uuid_utils.uuid7()),
        instance=instance,
        task_queue=task_queue,
        hostname=hostname,
        pid=pid,
        version=version,
        types=[served.name for served in types],
        type_versions=[served.version for served in types],
        type_hashes=[served.definition_hash for served in types],
        concurrency=concurrency,
        labels=rows.labels_text(labels or {}),
    )
    released = await release_parked(connection, namespace, task_queue, types)
    more = released == RELEASED_AT_ONCE
    return Registered(str(row["worker_id"]), row["status"], row["now"], released, more)


async def release_parked(connection: Connection, namespace: str, task_queue: str, types: Sequence[ServedType]) -> int:
    """Makes parked runs due that these definitions may go on with; answers how many, at most 1,000."""
    return await _release_parked.execute(
        connection,
        namespace=namespace,
        task_queue=task_queue,
        types=[served.name for served in types],
        type_versions=[served.version for served in types],
        type_hashes=[served.definition_hash for served in types],
        most=RELEASED_AT_ONCE,
    )


async def heartbeat(
    connection: Connection,
    namespace: str,
    worker_id: str,
    held: Sequence[Pair],
    *,
    lease_ms: int,
    interval_ms: int,
) -> Heartbeat:
    """Renews the named leases and puts back what the worker does not name although it had two intervals to.
    Refused with NOT_FOUND when the worker is unknown or OFFLINE: it registers again.
    """
    given = {"namespace": namespace, "worker_id": worker_id, "lease_ms": lease_ms}
    row = await _beat.first(connection, **given, held=len(held))
    if row is None:
        raise await namespaces.absent(connection, namespace, "worker that is online", worker_id, "worker_id")
    renewal = await renew(connection, namespace, held, lease_ms=lease_ms)
    queues = await _give_back(
        connection, namespace, worker_id, held, lease_ms=lease_ms, unless_within_ms=2 * interval_ms
    )
    return Heartbeat(
        now=row["now"],
        lease_until=row["lease_until"],
        should_drain=row["status"] == "DRAINING",
        renewal=renewal,
        put_back=frozenset(queues),
    )


async def renew(connection: Connection, namespace: str, held: Sequence[Pair], *, lease_ms: int) -> Renewal:
    """Sets the leases of these runs anew, each by its token, in one statement."""
    if not held:
        return Renewal()
    answers = await _renew.fetch(
        connection,
        namespace=namespace,
        run_ids=[pair[0] for pair in held],
        tokens=[pair[1] for pair in held],
        lease_ms=lease_ms,
    )
    return Renewal(
        lost=_pairs(answers, "LOST"),
        ended=_pairs(answers, "ENDED"),
        busy=_pairs(answers, "BUSY"),
        cancelled=tuple(str(answer["run_id"]) for answer in answers if answer["cancelled"]),
    )


async def resume(
    connection: Connection, namespace: str, worker_id: str, held: Sequence[Pair], *, lease_ms: int
) -> tuple[Renewal, frozenset[str]]:
    """A worker came back: renews what it names and puts everything else of it back at once, with no crash
    counted. Answers the queues that have something due now.
    """
    renewal = await renew(connection, namespace, held, lease_ms=lease_ms)
    return renewal, frozenset(await _give_back(connection, namespace, worker_id, held))


async def deregister(connection: Connection, namespace: str, worker_id: str) -> Deregistered:
    """Takes a worker's goodbye and puts back at once what it still held, with no crash counted."""
    if await _deregister.first(connection, namespace=namespace, worker_id=worker_id) is None:
        raise await namespaces.absent(connection, namespace, "worker", worker_id, "worker_id")
    queues = await _give_back(connection, namespace, worker_id, [])
    left = await roster.get(connection, namespace, worker_id)
    return Deregistered(len(queues), left.running, frozenset(queues))


async def drain(connection: Connection, namespace: str, worker_id: str) -> Worker:
    """Asks a worker to take nothing more; its next heartbeat says so. Refused for one that is OFFLINE."""
    asked = await _drain.first(connection, namespace=namespace, worker_id=worker_id)
    worker = await roster.get(connection, namespace, worker_id)
    if asked is None:
        raise precondition(f"worker {worker_id} is {worker.status}: there is nobody to drain", worker_id)
    return worker


async def _give_back(
    connection: Connection,
    namespace: str,
    worker_id: str,
    named: Sequence[Pair],
    *,
    lease_ms: int = 0,
    unless_within_ms: int | None = None,
) -> list[str]:
    """Puts back what a worker is recorded to hold and does not name; answers the queue of each such run."""
    found = await _put_back.fetch(
        connection,
        namespace=namespace,
        worker_id=worker_id,
        run_ids=[pair[0] for pair in named],
        tokens=[pair[1] for pair in named],
        everything=unless_within_ms is None,
        lease_ms=lease_ms,
        age_ms=unless_within_ms or 0,
    )
    return [row["task_queue"] for row in found]


def _pairs(answers: Sequence[Record], verdict: str) -> tuple[Pair, ...]:
    return tuple((str(row["run_id"]), str(row["token"])) for row in answers if row["verdict"] == verdict)
