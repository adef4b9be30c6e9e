"""A worker's shift, from its first hello to its goodbye: the delivered runs, each from its first chunk until its last
operation is answered. It is what an execution sees of its worker, and what the stream and the heartbeats speak to. A
run whose lease is lost is dropped and writes nothing more. Everything here happens on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeAlias

import uuid_utils
from google.protobuf.message import Message

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.sdk.codec import Chain
from kagzi.sdk.definition import Workflow
from kagzi.sdk.deployment import Deployments
from kagzi.sdk.heartbeat import Heartbeat
from kagzi.sdk.history import MOST_STEPS
from kagzi.sdk.host import IN_PLACE_US
from kagzi.sdk.lease import Lease, Leases, Run, may_begin
from kagzi.sdk.link import Link
from kagzi.sdk.outbox import Answered, Outbox
from kagzi.sdk.post import Post
from kagzi.sdk.residents import Residents, close
from kagzi.sdk.served import Served
from kagzi.sdk.threads import Threads

log = logging.getLogger("kagzi.worker")

Execute: TypeAlias = "Callable[[pb.Delivery, Workflow[Any, Any] | Served, Shift], Run]"

# How long the last operations may take to be answered before the leases are left to run out.
_LAST_ANSWERS = 5.0
_GOODBYE_WITHIN = 2.0


class Shift:
    """One shift at a post. `execute` makes the execution of a delivered run."""

    def __init__(self, post: Post, execute: Execute) -> None:
        self.namespace = post.namespace
        self.codecs: Chain = post.codecs
        self.executor: Executor = Threads(post.concurrency)
        self.in_place_us = IN_PLACE_US
        self.residents = Residents(post.residents)
        self.most_steps = MOST_STEPS
        self.leases = Leases()
        self.outbox = Outbox(wake=self._wake, settled=self._free, fallen=self._fall)
        deployments = Deployments(post.namespace, post.definitions(), str(uuid_utils.uuid4()))
        self.link = Link(post.targets, self, self.outbox, deployments, api_key=post.api_key, tls=post.tls)
        self.heartbeat = Heartbeat(
            post.targets, self.leases, self, namespace=post.namespace, api_key=post.api_key, tls=post.tls
        )
        self.drain_asked = asyncio.Event()
        self._post = post
        self._execute = execute
        # Called when a run begins or goes on here.
        self.stirred: Callable[[], None] = lambda: None
        # Made anew for each shift, so that two workers of one process are two.
        self._registration = post.registration(str(uuid_utils.uuid4()))
        self._worker_id = ""
        self._open = True
        self._empty = asyncio.Event()
        self._empty.set()
        self._loop = asyncio.get_running_loop()

    async def drain(self, hurry: asyncio.Event) -> None:
        """Takes no more runs and lets those held get on until the drain timeout, or until there is a hurry. What is
        left then is interrupted and given back. Suspended runs go on elsewhere.
        """
        self._open = False
        self.residents.close()
        if self.leases:
            # Credits cannot be taken back, but a new stream has none.
            self.link.reconnect()
            log.info("draining: %d runs may go on for %s", len(self.leases), self._post.drain_timeout)
        await self._until_empty(self._post.drain_timeout.total_seconds(), hurry)
        for lease in self.leases.all():
            self._loop.call_soon(self._interrupt, lease)
        await self._until_empty(_LAST_ANSWERS, None)

    async def close(self) -> None:
        """Says goodbye and closes every connection."""
        self.heartbeat.stop()
        if self._worker_id:
            goodbye = pb.DeregisterRequest(namespace=self.namespace, worker_id=self._worker_id)
            if not await self.link.deregister(goodbye, _GOODBYE_WITHIN):
                log.warning("no server heard the goodbye: what is still held comes back when its lease runs out")
        self.residents.close()
        for lease in self.leases.all():
            self._loop.call_soon(self._lose, lease)
        self.outbox.close()
        await self.link.close()
        self.executor.shutdown(wait=False)

    async def idle(self) -> None:
        """Waits until nothing is held."""
        await self._empty.wait()

    async def _until_empty(self, seconds: float, hurry: asyncio.Event | None) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (self._empty, hurry) if event is not None]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()

    def _interrupt(self, lease: Lease) -> None:
        if lease.execution is None:
            self._release(lease)
        elif not lease.over:
            self._guarded(lease, lease.execution.interrupt)

    def workflow(self, name: str) -> Workflow[Any, Any] | None:
        """The workflow of this name, if it is one of the worker's."""
        return self._post.workflows.get(name)

    def send(self, run: Run, name: str, body: Message, answered: Answered | None = None) -> None:
        """Queues one operation of a run for the next frame."""
        lease = self.leases.by_token.get(run.token)
        if lease is not None and not lease.lost:
            self.outbox.send(lease, name, body, answered)

    def send_soon(self, run: Run, name: str, make: Callable[[], Message]) -> Callable[[], bool]:
        """The same for one that can wait; answers how to withdraw it."""
        lease = self.leases.by_token.get(run.token)
        if lease is None or lease.lost:
            return lambda: True
        return self.outbox.send_soon(lease, name, make)

    def may_begin(self, run: Run) -> bool:
        """Whether the run's lease is young enough to begin a step body."""
        return may_begin(self.leases.by_token.get(run.token))

    def done(self, run: Run) -> None:
        """The run was given away, ended or dropped."""
        lease = self.leases.by_token.get(run.token)
        if lease is not None:
            self.leases.finish(lease)
            if not lease.unanswered:
                self._free(lease)

    @property
    def room(self) -> int:
        """How many more runs could be held."""
        return self.leases.room(self._post.concurrency) if self._open else 0

    def hello(self) -> pb.Hello:
        """The registration with all that is held. What has not arrived whole never will over the next stream."""
        held = [
            pb.Held(run_id=lease.run_id, claim_token=lease.token)
            for lease in self.leases.all()
            if lease.execution is not None or lease.delivery is not None or lease.over
        ]
        return pb.Hello(worker=self._registration, held=held, residents=self.residents.held())

    def evicted(self) -> list[pb.Held]:
        """Suspended runs that are no longer in memory."""
        return self.residents.evicted()

    def welcomed(self, welcome: pb.RegisterResponse, sent_at: float) -> None:
        """A server took the hello."""
        self._worker_id = welcome.worker_id
        self.most_steps = welcome.history_steps or MOST_STEPS
        self.leases.welcomed(welcome, sent_at)
        self.heartbeat.welcomed(welcome)

    def arriving(self, delivery: pb.Delivery) -> None:
        """A run is on its way: it is held from now on."""
        self.leases.add(delivery)
        self._empty.clear()

    def arrived(self, delivery: pb.Delivery) -> None:
        """A run is here. It begins, unless it may be too late: then not before a heartbeat says that it is ours."""
        lease = self.leases.by_token.get(delivery.claim_token)
        if lease is None:
            return
        lease.delivery = delivery
        if lease.begin_until:
            self._begin(lease, delivery)
        else:
            self.heartbeat.soon()

    def vanished(self, token: str) -> None:
        """The rest of a run will not arrive."""
        lease = self.leases.by_token.get(token)
        if lease is not None:
            self._free(lease)

    def _begin(self, lease: Lease, delivery: pb.Delivery) -> None:
        definition = self._post.served.get(delivery.workflow_type)
        if definition is None or not self._open:
            self._release(lease)
            return
        self.stirred()
        resident = self.residents.take(delivery)
        if resident is not None:
            lease.execution = resident
            self._loop.call_soon(self._guarded, lease, resident.resume, delivery)
        elif delivery.resident:
            # Evicted while the delivery was on its way. It comes again, with its history.
            self._release(lease)
            return
        else:
            try:
                lease.execution = self._execute(delivery, definition, self)
            except Exception:
                log.exception("run %s could not begin", lease.run_id)
                self._lose(lease)
                return
            self._loop.call_soon(self._guarded, lease, lease.execution.begin)
        lease.delivery = None
        if lease.early:
            facts, lease.early = lease.early, []
            self._tell(lease, facts)

    def _release(self, lease: Lease) -> None:
        self.outbox.send(lease, "release", pb.Release(operation_id=str(uuid_utils.uuid4())))
        self.leases.finish(lease)

    def told(self, run: pb.Held, facts: Sequence[pb.Fact]) -> None:
        """Something happened for a run while it is here."""
        lease = self.leases.by_token.get(run.claim_token)
        if lease is None:
            return
        if lease.execution is None:
            lease.early.extend(facts)
        else:
            self._tell(lease, facts)

    def _tell(self, lease: Lease, facts: Sequence[pb.Fact]) -> None:
        assert lease.execution is not None
        others = [fact for fact in facts if not fact.HasField("cancel_requested")]
        for fact in facts:
            if fact.HasField("cancel_requested"):
                self._loop.call_soon(self._guarded, lease, lease.execution.cancel, fact.cancel_requested)
        if others:
            self._loop.call_soon(self._guarded, lease, lease.execution.wake, others)

    def lost(self, run: pb.Held) -> None:
        """A run is not this worker's any more."""
        lease = self.leases.by_token.get(run.claim_token)
        # One that was given away here is awaited no longer than the answer to that, which may have been lost before.
        if lease is not None and not lease.over:
            log.warning("run %s is not held here any more: it was ended, or somebody else has it", lease.run_id)
            self._lose(lease)
        else:
            self.residents.lose(run)

    def asked_to_drain(self) -> None:
        """A notice is a hint, which a server that stops gives too; the worker's own row decides."""
        self.heartbeat.soon()

    def beaten(self, named: Sequence[Lease], answer: pb.HeartbeatResponse) -> None:
        """What became of the leases that a heartbeat named. Of cancel requests `wakes` says more than `cancelled`."""
        for lease in named:
            if lease.lost and lease.token in self.leases.by_token:
                log.warning("run %s is lost: its lease ran out, or it was ended", lease.run_id)
                self._lose(lease)
        for wake in answer.wakes:
            self.told(wake.run, wake.facts)
        for lease in named:
            if lease.delivery is not None and not lease.over and lease.begin_until:
                self._begin(lease, lease.delivery)
        if answer.should_drain:
            self.drain_asked.set()

    def forgotten(self) -> None:
        """No server knows this worker any more: it says hello anew."""
        log.warning("the server does not know this worker any more: registering again")
        self.link.reconnect()

    def _guarded(self, lease: Lease, method: Callable[..., None], *arguments: object) -> None:
        """Calls the execution of a run that is still here. A defect of ours costs that run alone its place."""
        if lease.token not in self.leases.by_token:
            return
        try:
            method(*arguments)
        except Exception:
            log.exception("run %s met a defect", lease.run_id)
            self._lose(lease)

    def _fall(self, lease: Lease, why: str) -> None:
        """An operation was refused, and with it every later one of the run."""
        log.warning("run %s cannot go on here: %s", lease.run_id, why)
        self._lose(lease)

    def _lose(self, lease: Lease) -> None:
        """Nothing more is written for the run."""
        lease.lost = True
        self.outbox.forget(lease)
        if self._free(lease) and lease.execution is not None:
            # Also one that was suspended and will not hear whether that was accepted.
            self._loop.call_soon(close, lease.execution)

    def _free(self, lease: Lease) -> bool:
        """Its slot is free: there is credit to give."""
        removed = self.leases.remove(lease)
        if removed:
            lease.delivery = None
            if not self.leases:
                self._empty.set()
            self._wake()
        return removed

    def _wake(self) -> None:
        self.link.wake()
