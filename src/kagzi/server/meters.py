"""What Prometheus reads. Nothing is counted twice: runs and steps are the tallies that charts are made of, what stands
in the queues is as it was last counted, and only a flush and a fired schedule are measured here, once a batch. A scrape
costs two bounded reads at most every few seconds. Names of workflows are users': beyond some hundred they share a name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from importlib.metadata import version
from typing import TYPE_CHECKING

import structlog
from asyncpg import Record
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from kagzi.server.lifecycle import Loop
from kagzi.store import counts
from kagzi.store.database import Database
from kagzi.store.errors import Unreachable
from kagzi.store.stats import BOUNDS, Tally

if TYPE_CHECKING:
    from kagzi.server.tallies import Tallies

log = structlog.get_logger(__name__)

# Pairs of namespace and type that have lines of their own; the busiest have.
_PAIRS = 300
_OTHERS = "(others)"
_COUNTED_WITHIN = timedelta(minutes=2)
_MOST_QUEUES = 1_000
_KEPT_SECS = 5.0
_PATIENCE = 1.0
# Of the tallies' buckets every fourth: each bound is four times the one before.
_EVERY = 4
_STATES = ("pending_due", "pending_later", "running", "sleeping")


class Meters(Collector):
    """The measures of one server. `loops` are its background loops, `gauges` what else stands in memory."""

    def __init__(
        self,
        database: Database,
        tallies: Tallies,
        *,
        loops: Sequence[Loop] = (),
        gauges: Callable[[], dict[str, tuple[str, float]]] = dict,
    ) -> None:
        self._database = database
        self._tallies = tallies
        self._loops = loops
        self._gauges = gauges
        self._queues: list[Record] = []
        self._backlogs: list[Record] = []
        self._read_at = float("-inf")
        self._registry = CollectorRegistry()
        self._flush_operations = Histogram(
            "kagzi_flush_operations",
            "Operations that shared one transaction.",
            buckets=(1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000),
            registry=self._registry,
        )
        self._flush_seconds = Histogram(
            "kagzi_flush_seconds",
            "How long a flush took, its commit included.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self._registry,
        )
        self._lateness = Histogram(
            "kagzi_schedule_lateness_seconds",
            "How long after its time a schedule fired.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 300),
            registry=self._registry,
        )
        self._registry.register(self)

    def flushed(self, operations: int, seconds: float) -> None:
        """A flush was committed."""
        self._flush_operations.observe(operations)
        self._flush_seconds.observe(seconds)

    def fired(self, late: Iterable[float]) -> None:
        """Schedules fired, so many seconds after their times."""
        for seconds in late:
            self._lateness.observe(max(0.0, seconds))

    async def scrape(self) -> tuple[bytes, str]:
        """Everything, and how that is to be called."""
        await self._look()
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def describe(self) -> list[Metric]:
        """Nothing: what there is shows when it is asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """What is not measured but read off."""
        yield InfoMetricFamily("kagzi_build", "What this server is.", {"version": version("kagzi")})
        yield from self._runs()
        yield from self._standing()
        crashes = CounterMetricFamily("kagzi_loop_crashes", "Crashes of a background loop.", labels=["loop"])
        for loop in self._loops:
            crashes.add_metric([loop.name], loop.crashes)
        yield crashes
        for name, (said, value) in self._gauges().items():
            yield GaugeMetricFamily(f"kagzi_{name}", said, value)

    def _runs(self) -> Iterator[Metric]:
        labels = ["namespace", "type"]
        started = CounterMetricFamily("kagzi_runs_started", "Runs created.", labels=labels)
        ended = CounterMetricFamily("kagzi_runs_ended", "Runs that ended.", labels=[*labels, "status"])
        claims = CounterMetricFamily("kagzi_claims", "Runs handed to workers.", labels=labels)
        pickup = HistogramMetricFamily("kagzi_run_pickup_seconds", "From due to claimed.", labels=labels)
        duration = HistogramMetricFamily("kagzi_run_duration_seconds", "From creation to end.", labels=labels)
        steps = CounterMetricFamily("kagzi_step_attempts", "Step attempts that ended.", labels=["namespace", "status"])
        lost = CounterMetricFamily("kagzi_leases_lost", "Writes refused for want of a lease.", labels=["namespace"])
        for namespace, workflow_type, tally in _named(self._tallies.totals()):
            if workflow_type == "":
                steps.add_metric([namespace, "completed"], tally.steps_completed)
                steps.add_metric([namespace, "failed"], tally.steps_failed)
                lost.add_metric([namespace], tally.leases_lost)
                continue
            names = [namespace, workflow_type]
            started.add_metric(names, tally.started)
            for status in ("completed", "failed", "cancelled"):
                ended.add_metric([*names, status], getattr(tally, status))
            claims.add_metric(names, sum(tally.pickup))
            pickup.add_metric(names, *_buckets(tally.pickup))
            duration.add_metric(names, *_buckets(tally.duration))
        yield from (started, ended, claims, pickup, duration, steps, lost)

    def _standing(self) -> Iterator[Metric]:
        labels = ["namespace", "queue", "type"]
        runs = GaugeMetricFamily("kagzi_queue_runs", "Runs by what they wait for.", labels=[*labels, "state"])
        oldest = GaugeMetricFamily("kagzi_queue_oldest_due_seconds", "How long the oldest has been due.", labels=labels)
        workers = GaugeMetricFamily("kagzi_queue_workers", "Workers that serve it.", labels=labels)
        slots = GaugeMetricFamily("kagzi_queue_free_slots", "Runs these could take now.", labels=labels)
        for row in self._queues:
            names = [row["namespace"], row["task_queue"], row["workflow_type"]]
            for state in _STATES:
                runs.add_metric([*names, state], row[state])
            oldest.add_metric(names, row["oldest_due_ms"] / 1_000)
            workers.add_metric(names, row["workers"])
            slots.add_metric(names, row["free_slots"])
        pending = GaugeMetricFamily(
            "kagzi_automation_pending", "Events that wait for a consumer.", labels=["namespace", "automation"]
        )
        blocked = GaugeMetricFamily(
            "kagzi_automation_blocked", "1 while it is blocked.", labels=["namespace", "automation"]
        )
        for row in self._backlogs:
            pending.add_metric([row["namespace"], row["name"]], row["pending"])
            blocked.add_metric([row["namespace"], row["name"]], int(row["blocked"]))
        yield from (runs, oldest, workers, slots, pending, blocked)

    async def _look(self) -> None:
        """Reads what stands where, unless that was read a moment ago; without a database the last stays."""
        if time.monotonic() - self._read_at < _KEPT_SECS:
            return
        self._read_at = time.monotonic()
        try:
            self._queues = await self._database.read(
                lambda c: counts.everywhere(c, since=_COUNTED_WITHIN, most=_MOST_QUEUES), _PATIENCE
            )
            self._backlogs = await self._database.read(counts.backlogs, _PATIENCE)
        except Unreachable:
            log.warning("meters_without_database")


def _named(totals: dict[str, dict[str, Tally]]) -> Iterator[tuple[str, str, Tally]]:
    """Every tally with its names. The busiest pairs keep theirs, the rest of a namespace is one."""
    pairs = [(namespace, name, tally) for namespace, types in totals.items() for name, tally in types.items() if name]
    pairs.sort(key=lambda pair: pair[2].started + pair[2].completed + pair[2].failed, reverse=True)
    yield from pairs[:_PAIRS]
    others: dict[str, Tally] = {}
    for namespace, _, tally in pairs[_PAIRS:]:
        others.setdefault(namespace, Tally()).add(tally)
    for namespace, tally in others.items():
        yield namespace, _OTHERS, tally
    for namespace, types in totals.items():
        if "" in types:
            yield namespace, "", types[""]


def _buckets(counted: Sequence[int]) -> tuple[list[tuple[str, float]], float]:
    """Cumulative counts at every fourth bound in seconds, and a sum that is right to within a bucket."""
    made: list[tuple[str, float]] = []
    seen = 0
    total = 0.0
    for place, count in enumerate(counted):
        seen += count
        bound = BOUNDS[min(place, len(BOUNDS) - 1)] / 1_000
        total += count * bound
        if place < len(BOUNDS) and place % _EVERY == 0:
            made.append((f"{bound:g}", float(seen)))
    made.append(("+Inf", float(seen)))
    return made, total
