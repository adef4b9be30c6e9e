"""Workers as the server knows them: registration, heartbeats, goodbye, and what each can run. Nothing is remembered:
another server may have drained a worker, or taken its goodbye, a moment ago.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from asyncpg.connection import Connection

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.server.announcer import Announcer
from kagzi.server.api import checks
from kagzi.store import facts, namespaces, roster, rows, workers
from kagzi.store.claims import Served
from kagzi.store.database import Database
from kagzi.store.errors import invalid, not_found
from kagzi.store.roster import ServedType
from kagzi.store.workers import Pair

_MOST_TYPES = 1_000
_MOST_PLACES = 10_000
# More than a worker can hold: what it has given back is named until that is answered.
_MOST_HELD = 20_000
# As much of what arrived for held runs goes with one heartbeat.
_WAKES_BYTES = 1 << 20
_BUSY_SECS = 1.0
_BUSY_PAUSE = 0.004


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A worker that may take runs."""

    worker_id: str
    served: Served
    response: pb.RegisterResponse
    should_drain: bool


class Enrolment:
    """Registers workers and renews their leases."""

    def __init__(
        self,
        database: Database,
        announcer: Announcer,
        *,
        lease: timedelta,
        heartbeat: timedelta,
        history_steps: int,
    ) -> None:
        self._database = database
        self._history_steps = history_steps
        self._announcer = announcer
        self._lease_ms = int(lease.total_seconds() * 1_000)
        self._interval_ms = int(heartbeat.total_seconds() * 1_000)

    async def register(self, request: pb.RegisterRequest) -> Enrolled:
        """Makes a worker known, or known again."""
        namespace = checks.namespace(request.namespace)
        task_queue = checks.name(request.task_queue, "task_queue", default="default")
        instance = checks.name(request.instance, "instance")
        types = _types(request)
        labels = checks.labels(request.labels, "labels")
        if not 0 <= request.concurrency <= _MOST_PLACES:
            message = f"concurrency is {request.concurrency}, and must be from 0 (left open) to {_MOST_PLACES}"
            raise invalid("concurrency", message)

        async def register(connection: Connection) -> workers.Registered:
            # A worker of a disabled namespace may come back to finish what it holds.
            await namespaces.require(connection, namespace, enabled=False)
            return await workers.register(
                connection,
                namespace,
                instance=instance,
                task_queue=task_queue,
                types=types,
                hostname=checks.name(request.hostname, "hostname", default=""),
                pid=request.pid,
                version=checks.name(request.version, "version", default=""),
                concurrency=request.concurrency,
                labels=labels,
            )

        registered = await self._database.transact(register)
        more = registered.more_parked
        while more:
            released = await self._database.transact(lambda c: workers.release_parked(c, namespace, task_queue, types))
            more = released > 0
        if registered.released:
            self._announcer.due(namespace, task_queue)
        served = served_by(namespace, task_queue, types)
        response = pb.RegisterResponse(
            worker_id=registered.worker_id,
            lease_ms=self._lease_ms,
            heartbeat_interval_ms=self._interval_ms,
            now_us=rows.microseconds(registered.now),
            history_steps=self._history_steps,
        )
        return Enrolled(registered.worker_id, served, response, registered.status == "DRAINING")

    async def served(self, namespace: str, worker_id: str) -> Served | None:
        """What a worker can run; None when it drains, NOT_FOUND when it is unknown, silent for too long, or gone."""
        worker = await self._database.read(lambda c: roster.get(c, namespace, worker_id, look_at=1))
        if worker.status == "OFFLINE":
            raise not_found("worker that is online", worker_id, "worker_id")
        return None if worker.status == "DRAINING" else served_by(namespace, worker.task_queue, worker.types)

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        """Renews the leases the worker names and tells it what it should know."""
        namespace = checks.namespace(request.namespace)
        worker_id = checks.uuid(request.worker_id, "worker_id")
        held = pairs(request.held, "held")

        async def beat(connection: Connection) -> workers.Heartbeat:
            return await workers.heartbeat(
                connection, namespace, worker_id, held, lease_ms=self._lease_ms, interval_ms=self._interval_ms
            )

        answer = await self._database.transact(beat)
        for task_queue in answer.put_back:
            self._announcer.due(namespace, task_queue)
        lost, cancelled = [*answer.renewal.lost], {*answer.renewal.cancelled}
        for again in await self._renew_busy(namespace, answer.renewal.busy):
            lost += again.lost
            cancelled |= {*again.cancelled}
        return pb.HeartbeatResponse(
            now_us=rows.microseconds(answer.now),
            lease_until_us=rows.microseconds(answer.lease_until),
            lost=[pb.Held(run_id=run_id, claim_token=token) for run_id, token in lost],
            cancelled=sorted(cancelled),
            should_drain=answer.should_drain,
            wakes=await self._wakes(namespace, held),
        )

    async def _renew_busy(self, namespace: str, busy: Sequence[Pair]) -> list[workers.Renewal]:
        """Tries again what somebody had locked. A run that writes one result after another is locked most of the time,
        for a moment each; whoever keeps one locked for longer delays this heartbeat no more than a second.
        """
        renewals: list[workers.Renewal] = []
        until, pause = time.monotonic() + _BUSY_SECS, _BUSY_PAUSE
        while busy and time.monotonic() < until:
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _BUSY_SECS / 8)
            renew = partial(workers.renew, namespace=namespace, held=busy, lease_ms=self._lease_ms)
            again = await self._database.transact(renew)
            renewals.append(again)
            busy = again.busy
        return renewals

    async def _wakes(self, namespace: str, held: Sequence[Pair]) -> list[pb.Wake]:
        """Facts that are there for held runs: what a lost notice would have told."""
        if not held:
            return []
        there = await self._database.read(lambda c: facts.of(c, namespace, [pair[0] for pair in held]))
        wakes: list[pb.Wake] = []
        size = 0
        for run_id, token in held:
            for fact in there.get(run_id, ()):
                size += fact.ByteSize()
                if wakes and size > _WAKES_BYTES:
                    # The rest waits for the next heartbeat: the answer must fit what a client reads at once.
                    return wakes
                wakes.append(pb.Wake(run=pb.Held(run_id=run_id, claim_token=token), facts=[fact]))
        return wakes

    async def resume(self, namespace: str, worker_id: str, held: Sequence[Pair]) -> workers.Renewal:
        """A worker came back on a new stream: renews what it still holds and puts back what it does not name."""
        renewal, queues = await self._database.transact(
            lambda c: workers.resume(c, namespace, worker_id, held, lease_ms=self._lease_ms)
        )
        for task_queue in queues:
            self._announcer.due(namespace, task_queue)
        return renewal

    async def deregister(self, request: pb.DeregisterRequest) -> pb.DeregisterResponse:
        """Takes a worker's goodbye."""
        namespace = checks.namespace(request.namespace)
        worker_id = checks.uuid(request.worker_id, "worker_id")
        gone = await self._database.transact(lambda c: workers.deregister(c, namespace, worker_id))
        if gone.busy:
            gone = await self._database.transact(lambda c: workers.deregister(c, namespace, worker_id))
        for task_queue in gone.queues:
            self._announcer.due(namespace, task_queue)
        return pb.DeregisterResponse(released=gone.released)


def served_by(namespace: str, task_queue: str, types: Sequence[ServedType]) -> Served:
    """Runs without a version go to any worker of the type; those with one only to workers that have it."""
    pairs = {(served.name, version) for served in types for version in ("", served.version)}
    ordered = sorted(pairs)
    return Served(namespace, task_queue, tuple(name for name, _ in ordered), tuple(version for _, version in ordered))


def pairs(held: Sequence[pb.Held], field: str) -> list[Pair]:
    """Runs and their tokens, checked."""
    if len(held) > _MOST_HELD:
        raise checks.exceeded(field, f"{field} names {len(held)} runs, and a worker holds at most {_MOST_HELD}")
    return [
        (checks.uuid(one.run_id, f"{field}.run_id"), checks.uuid(one.claim_token, f"{field}.claim_token"))
        for one in held
    ]


def _types(request: pb.RegisterRequest) -> list[ServedType]:
    if not request.types:
        raise invalid("types", "a worker names at least one workflow it can run")
    if len(request.types) > _MOST_TYPES:
        raise checks.exceeded("types", f"a worker serves at most {_MOST_TYPES} workflows")
    return [
        ServedType(
            checks.name(served.name, "types.name"),
            checks.name(served.version, "types.version", default=""),
            checks.name(served.definition_hash, "types.definition_hash", default=""),
        )
        for served in request.types
    ]
