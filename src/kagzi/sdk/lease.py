"""Leases: the runs a worker holds, each with its token and the time until which a step may begin. Kept on the event
loop, read and renewed by the thread of the heartbeats: every change is one assignment, so neither waits for the
other. Times are monotonic and err to the early side; nothing here asks a server.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Protocol

from kagzi.protocol.v1 import worker_pb2 as pb

# A delivery that may be older than this is not begun before a heartbeat says that it is still ours: the server puts
# back what is not acknowledged within 5 s.
_LATE = 2.5


class Run(Protocol):
    """What a worker needs of the execution of one delivered run. All of it is called from plain callbacks."""

    run_id: str
    token: str

    def begin(self) -> None: ...

    def wake(self, facts: Sequence[pb.Fact], /) -> None: ...

    def cancel(self, request: pb.CancelRequested, /) -> None: ...

    def drop(self) -> None: ...

    def interrupt(self) -> None: ...


class Lease:
    """One run in the worker's hands, from its first chunk until its last operation is answered."""

    __slots__ = (
        "begin_until",
        "delivery",
        "early",
        "execution",
        "lost",
        "over",
        "refused",
        "run_id",
        "token",
        "unanswered",
    )

    def __init__(self, run_id: str, token: str) -> None:
        self.run_id = run_id
        self.token = token
        # No step body begins after this.
        self.begin_until = 0.0
        # Somebody else has the run: nothing more is written.
        self.lost = False
        # It was given away or dropped: nothing of it runs, only answers are awaited.
        self.over = False
        self.unanswered = 0
        # The whole delivery while it waits to be begun, and what arrived for it meanwhile.
        self.delivery: pb.Delivery | None = None
        self.early: list[pb.Fact] = []
        self.execution: Run | None = None


class Leases:
    """All of a worker's leases, by token: a run can come back under another one before the last word on the first."""

    def __init__(self) -> None:
        self.by_token: dict[str, Lease] = {}
        # How many of these are over.
        self._over = 0
        self._length = 0.0
        self._margin = 0.0
        # A moment, and the latest that the database's clock can have shown then, in microseconds.
        self._clock: tuple[float, int] | None = None

    def __len__(self) -> int:
        return len(self.by_token)

    def room(self, concurrency: int) -> int:
        """How many more runs could be held. A run that is over needs no slot: its credit travels with its last
        operation, so that the server has the slot when it tells of the end. While answers stay away there is a limit.
        """
        held = len(self.by_token)
        return min(concurrency - (held - self._over), 2 * concurrency - held)

    def all(self) -> list[Lease]:
        """A copy that other threads may ask for: making it is one step of the interpreter."""
        return list(self.by_token.values())

    def welcomed(self, welcome: pb.RegisterResponse, sent_at: float) -> None:
        """The server said how long a lease lasts, in answer to what was sent at `sent_at`."""
        self._length = welcome.lease_ms / 1_000
        self._margin = self._length / 6
        self._clock = (sent_at, welcome.now_us)

    def add(self, delivery: pb.Delivery) -> Lease:
        """A run that was claimed for this worker."""
        lease = Lease(delivery.run_id, delivery.claim_token)
        lease.begin_until = self._begin_until(delivery, time.monotonic())
        self.by_token[lease.token] = lease
        return lease

    def _begin_until(self, delivery: pb.Delivery, now: float) -> float:
        # It may have waited long in a buffer: this process may have stood still. What was claimed at a known time of
        # the database is as old as its clock can be ahead of that by now.
        until = now + (delivery.lease_until_us - delivery.now_us) / 1e6
        if self._clock is None:
            return until - self._margin
        at, clock_us = self._clock
        at_the_latest = at + (delivery.lease_until_us - clock_us) / 1e6
        if until - at_the_latest > min(_LATE, self._margin):
            return 0.0
        return min(until, at_the_latest) - self._margin

    def finish(self, lease: Lease) -> None:
        """The run was given away or dropped."""
        if not lease.over:
            lease.over = True
            self._over += lease.token in self.by_token

    def remove(self, lease: Lease) -> bool:
        """The run is in nobody's hands here any more; False when it was not before."""
        if self.by_token.pop(lease.token, None) is None:
            return False
        self._over -= lease.over
        return True

    def renewed(self, named: Collection[Lease], answer: pb.HeartbeatResponse, sent_at: float) -> None:
        """What a heartbeat sent at `sent_at` with these leases was answered. Called by the thread of the heartbeats."""
        self._clock = (sent_at, answer.now_us)
        until = sent_at + (answer.lease_until_us - answer.now_us) / 1e6 - self._margin
        lost = {one.claim_token for one in answer.lost}
        for lease in named:
            if lease.token in lost:
                lease.lost = True
            elif until > lease.begin_until:
                lease.begin_until = until


def may_begin(lease: Lease | None) -> bool:
    """Whether a step of the run may begin now."""
    return lease is not None and not lease.lost and time.monotonic() < lease.begin_until
