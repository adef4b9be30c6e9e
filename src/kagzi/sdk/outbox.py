"""The outbox: operations on their way to the server. They leave in the order in which they were sent, many to a
frame, and are kept until they are answered: what was not is sent again over the next stream, under its old number,
and takes effect once. Nothing here waits or knows a stream.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from google.protobuf.message import Message

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.sdk.lease import Lease

log = logging.getLogger("kagzi.worker")

# Told on the event loop, from a plain callback: None when the operation was accepted and there is no more to say.
Answered: TypeAlias = Callable[[pb.Answer | None], None]

# A frame is cut here; what is larger travels alone.
_FRAME_BYTES = 1 << 20
_FRAME_OPERATIONS = 1_000
# Of more runs than this a frame takes half. Runs whose operations share a frame share a commit and an answer, and would
# move in step for ever: while the server writes for all of them the worker would rest, and the other way round.
_RUNS_IN_STEP = 30
# Number, run, token and framing of one operation.
_ENVELOPE_BYTES = 100
# What is sent soon leaves when it is this old, at most twice that.
_SOON = 0.05

# The body of what has not been made.
_UNMADE = pb.Operation()


class Sent:
    """One operation until it is answered."""

    __slots__ = ("answered", "body", "lease", "make", "name", "number", "since")

    def __init__(self, lease: Lease, name: str, body: Message, answered: Answered | None) -> None:
        self.lease = lease
        self.name = name
        self.body = body
        self.answered = answered
        # Makes the body of one that may never leave.
        self.make: Callable[[], Message] | None = None
        # 0 while it may still be withdrawn.
        self.number = 0
        self.since = 0.0


class Outbox:
    """`wake` is called when a frame can be made; `settled` when a run that is over has no more to hear; `fallen` when
    an operation was refused and nobody but the worker can draw the consequence.
    """

    def __init__(
        self,
        *,
        wake: Callable[[], None],
        settled: Callable[[Lease], object],
        fallen: Callable[[Lease, str], None],
    ) -> None:
        self._wake = wake
        self._settled = settled
        self._fallen = fallen
        self._numbers = 0
        self._waiting: deque[Sent] = deque()
        self._unanswered: dict[int, Sent] = {}
        # By token. What follows in the same run takes it along, so that the order is kept.
        self._soon: dict[str, list[Sent]] = {}
        self._timer: asyncio.TimerHandle | None = None
        # The server cannot write for now: what it refused is sent again, to another.
        self.turned_away = False

    def __len__(self) -> int:
        """How many operations have no answer yet."""
        return len(self._waiting) + len(self._unanswered)

    def send(self, lease: Lease, name: str, body: Message, answered: Answered | None = None) -> None:
        """Takes an operation for the next frame; `name` is its field in pb.Operation."""
        soon = self._soon.pop(lease.token, None) if self._soon else None
        if soon is not None:
            self._enqueue(soon)
        self._enqueue((Sent(lease, name, body, answered),))

    def send_soon(self, lease: Lease, name: str, make: Callable[[], Message]) -> Callable[[], bool]:
        """Takes an operation that leaves with the next one of its run, or within 100 ms, and is made then. Answers how
        to withdraw it, which says True when it had not left.
        """
        sent = Sent(lease, name, _UNMADE, None)
        sent.make = make
        sent.since = time.monotonic()
        self._soon.setdefault(lease.token, []).append(sent)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SOON, self._sweep)
        return partial(self._withdraw, sent)

    def _enqueue(self, several: list[Sent] | tuple[Sent]) -> None:
        for sent in several:
            self._numbers += 1
            sent.number = self._numbers
            if sent.make is not None:
                sent.body, sent.make = sent.make(), None
            sent.lease.unanswered += 1
            self._waiting.append(sent)
        self._wake()

    def _withdraw(self, sent: Sent) -> bool:
        several = self._soon.get(sent.lease.token)
        if sent.number or several is None or sent not in several:
            return False
        several.remove(sent)
        if not several:
            del self._soon[sent.lease.token]
        return True

    def _sweep(self) -> None:
        self._timer = None
        old = time.monotonic() - _SOON
        for token, several in list(self._soon.items()):
            if several[0].since <= old:
                del self._soon[token]
                self._enqueue(several)
        if self._soon:
            self._timer = asyncio.get_running_loop().call_later(_SOON, self._sweep)

    def fill(self, frame: pb.ConnectRequest) -> bool:
        """Puts the next operations into a frame; whether more are left for another."""
        waiting, unanswered, add = self._waiting, self._unanswered, frame.operations.add
        room = _FRAME_BYTES
        for _ in range(min(self._share(), _FRAME_OPERATIONS)):
            sent = waiting[0]
            room -= sent.body.ByteSize() + _ENVELOPE_BYTES
            if room < 0 and frame.operations:
                break
            waiting.popleft()
            unanswered[sent.number] = sent
            lease = sent.lease
            # The field is known by name alone, and its message to its sender.
            field: dict[str, object] = {sent.name: sent.body}
            add(number=sent.number, run_id=lease.run_id, claim_token=lease.token, **field)
        return bool(waiting)

    def _share(self) -> int:
        """How many of the waiting operations the next frame takes."""
        waiting = self._waiting
        count = len(waiting)
        if count <= _RUNS_IN_STEP or len({sent.lease.token for sent in waiting}) <= _RUNS_IN_STEP:
            return count
        share = -(-count // 2)
        # What a run sent together stays together.
        while share < count and waiting[share].lease is waiting[share - 1].lease:
            share += 1
        return share

    def hear(self, frame: pb.ConnectResponse) -> None:
        """Draws the consequences of a frame's answers, in the order of the operations."""
        answers: list[tuple[int, pb.Answer | None]] = [(number, None) for number in frame.accepted]
        if frame.answers:
            answers += [(answer.number, answer) for answer in frame.answers if not self._comes_again(answer)]
            answers.sort(key=_number)
        for number, answer in answers:
            sent = self._unanswered.pop(number, None)
            if sent is not None:
                self._settle(sent, answer)

    def _comes_again(self, answer: pb.Answer) -> bool:
        """Whether the refusal is no verdict: the server could not write, and what followed fell with it."""
        code = answer.refused.code if answer.HasField("refused") else ErrorDetail.CODE_UNSPECIFIED
        if code in (ErrorDetail.UNAVAILABLE, ErrorDetail.RESOURCE_EXHAUSTED):
            self.turned_away = True
            return True
        return self.turned_away and code == ErrorDetail.PREDECESSOR_REFUSED

    def _settle(self, sent: Sent, answer: pb.Answer | None) -> None:
        lease = sent.lease
        lease.unanswered -= 1
        if not lease.lost:
            refused = answer.refused if answer is not None and answer.HasField("refused") else None
            if sent.answered is not None:
                try:
                    sent.answered(answer)
                except Exception:
                    log.exception("run %s met a defect after its %s", lease.run_id, sent.name)
                    self._fallen(lease, "its execution met a defect")
            if refused is not None and (sent.answered is None or refused.code == ErrorDetail.LEASE_LOST):
                self._fallen(lease, f"{sent.name} was refused: {refused.message}")
        if lease.over and not lease.unanswered:
            self._settled(lease)

    def rewind(self) -> None:
        """A new stream: what was not answered leaves again, before everything else."""
        self._waiting.extendleft(reversed(self._unanswered.values()))
        self._unanswered.clear()
        self.turned_away = False

    def forget(self, lease: Lease) -> None:
        """Nothing more is sent for this run; the answers to what has left are of no interest."""
        self._soon.pop(lease.token, None)
        self._waiting = deque(sent for sent in self._waiting if sent.lease is not lease)
        for number in [number for number, sent in self._unanswered.items() if sent.lease is lease]:
            del self._unanswered[number]
        lease.unanswered = 0

    def close(self) -> None:
        """No timer is left behind."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _number(pair: tuple[int, pb.Answer | None]) -> int:
    return pair[0]
