"""Counts a minute and an hour, for charts. Each server keeps a tally of the current ones and sets its own rows to it,
so that servers never meet and a repeated write counts nothing twice. Times are kept as counts in buckets that
grow by the square root of two, so a percentile is right to within a fifth. Charts, not books: what a server
had not yet put when it was killed is lost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.admin_pb2 import GetStatsResponse
from kagzi.store import rows
from kagzi.store.queries import Queries

Point = GetStatsResponse.Point
Latency = GetStatsResponse.Latency

_COUNTS = (
    "started",
    "completed",
    "failed",
    "cancelled",
    "steps_completed",
    "steps_failed",
    "leases_lost",
)
_GAUGES = ("pending_due", "running", "sleeping", "oldest_due_ms")

# How many minutes a row is for.
MINUTE = 1
HOUR = 60
# Rows that a chart is made of, where nobody asks for less.
_ALL = 2**31 - 1

_sql = Queries("stats.sql")
_put = _sql.bind("put")
_gauge = _sql.bind("gauge")
_uncounted = _sql.bind("uncounted", columns=("namespace", "stood"))
_points = _sql.bind("points", columns=("number", *_COUNTS, "pickup", "duration", *_GAUGES, "looked_until"))

# Upper bounds of the buckets in milliseconds, from 1 ms to 35 days; one more bucket holds what took longer.
BOUNDS = [2 ** (step / 2) for step in range(64)]


@dataclass(slots=True)
class Tally:
    """What happened to the runs of one workflow type in one minute, as far as this server did it."""

    started: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    steps_completed: int = 0
    steps_failed: int = 0
    leases_lost: int = 0
    # How many runs took how long from being due to being claimed, and from creation to end, by bucket.
    pickup: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    duration: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))

    def picked_up(self, waited_ms: float) -> None:
        """A run was claimed this long after it was due."""
        self.pickup[bisect_left(BOUNDS, waited_ms)] += 1

    def ended(self, took_ms: float) -> None:
        """A run ended this long after it was created."""
        self.duration[bisect_left(BOUNDS, took_ms)] += 1

    def add(self, other: Tally) -> None:
        """Counts what the other has counted too."""
        for count in _COUNTS:
            setattr(self, count, getattr(self, count) + getattr(other, count))
        self.pickup = [one + more for one, more in zip(self.pickup, other.pickup, strict=True)]
        self.duration = [one + more for one, more in zip(self.duration, other.duration, strict=True)]


async def put(
    connection: Connection,
    namespace: str,
    server_id: str,
    minute: datetime,
    tallies: Mapping[str, Tally],
    span: int = MINUTE,
) -> None:
    """Stores what this server has counted in a minute, or in the hour of it, so far: by workflow type, '' for what has
    none. What is stored for '' is all together.
    """
    together = Tally()
    for tally in tallies.values():
        together.add(tally)
    tallies = {**tallies, "": together}
    counted = list(tallies.values())
    await _put.execute(
        connection,
        namespace=namespace,
        server_id=server_id,
        minute=minute,
        span=span,
        workflow_types=list(tallies),
        started=[tally.started for tally in counted],
        completed=[tally.completed for tally in counted],
        failed=[tally.failed for tally in counted],
        cancelled=[tally.cancelled for tally in counted],
        steps_completed=[tally.steps_completed for tally in counted],
        steps_failed=[tally.steps_failed for tally in counted],
        leases_lost=[tally.leases_lost for tally in counted],
        pickup=[_array(tally.pickup) for tally in counted],
        duration=[_array(tally.duration) for tally in counted],
    )


async def gauge(
    connection: Connection,
    namespace: str,
    server_id: str,
    *,
    pending_due: int,
    running: int,
    sleeping: int,
    oldest_due_ms: int,
) -> None:
    """Stores what stands in a namespace now; one server's count is enough."""
    await _gauge.execute(
        connection,
        namespace=namespace,
        server_id=server_id,
        pending_due=pending_due,
        running=running,
        sleeping=sleeping,
        oldest_due_ms=oldest_due_ms,
    )


async def uncounted(connection: Connection, *, since: timedelta, most: int, after: str = "") -> list[tuple[str, bool]]:
    """Namespaces by name, after the one called `after`, in which nobody has counted what stands for so long; and
    whether something stood there when last counted.
    """
    found = await _uncounted.fetch(connection, after=after, since=since, most=most)
    return [(row["namespace"], row["stood"]) for row in found]


async def points(
    connection: Connection,
    namespace: str,
    *,
    since: datetime,
    until: datetime,
    minutes: int,
    workflow_type: str = "",
    look_at: int = 0,
) -> tuple[list[Point], datetime | None]:
    """One point for every stretch of `minutes` from `since`, a whole minute, until `until`, without gaps. Where
    there are more rows than `look_at`, also the minute or hour from which on nothing was counted.
    """
    found = await _points.fetch(
        connection,
        namespace=namespace,
        since=since,
        until=until,
        minutes=minutes,
        workflow_type=workflow_type,
        look_at=look_at or _ALL,
        # Rows of an hour tell as much where a stretch is made of whole ones.
        span=HOUR if minutes % 60 == 0 and since.minute == 0 else MINUTE,
    )
    step = timedelta(minutes=minutes)
    answer = [Point(at=rows.timestamp(since + step * number)) for number in range(-(-(until - since) // step))]
    for row in found:
        if row["number"] is not None:
            _fill(answer[row["number"]], row)
    return answer, found[0]["looked_until"]


def latency(counts: Sequence[int]) -> Latency | None:
    """The percentiles of what fell into the buckets; None when nothing did."""
    total = sum(counts)
    if not total:
        return None
    return Latency(
        count=total,
        p50_ms=_percentile(counts, total * 0.5),
        p95_ms=_percentile(counts, total * 0.95),
        p99_ms=_percentile(counts, total * 0.99),
    )


def _fill(point: Point, row: Record) -> None:
    for column in (*_COUNTS, *_GAUGES):
        setattr(point, column, row[column] or 0)
    for name in ("pickup", "duration"):
        measured = latency(row[name])
        if measured is not None:
            getattr(point, name).CopyFrom(measured)


def _percentile(counts: Sequence[int], rank: float) -> int:
    """The time that `rank` of the counted did not pass, read off its bucket in proportion."""
    seen = 0
    for place, count in enumerate(counts):
        if seen + count >= rank:
            low = BOUNDS[place - 1] if place else 0.0
            high = BOUNDS[min(place, len(BOUNDS) - 1)]
            return round(low + (high - low) * (rank - seen) / count)
        seen += count
    return round(BOUNDS[-1])


def _array(counts: Sequence[int]) -> str:
    """Buckets as PostgreSQL writes an array: arrays of different lengths cannot travel in one."""
    return "{" + ",".join(map(str, counts)) + "}"
