"""Operations: what the batcher gathers and the store applies, whoever asked. An operation stays the protobuf message it
arrived as until the arrays of a statement are built from it; its answer is a message of the contract too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Any, Literal

from google.protobuf.message import Message

from kagzi.protocol.v1.common_pb2 import ErrorDetail, Payload
from kagzi.protocol.v1.worker_pb2 import Delivery


class Kind(IntEnum):
    """What an operation does. Within one wave kinds apply in this order, which is also the usual order in a run: what
    became of steps, what begins, what is published, and last what gives the run away.
    """

    START = 0
    SIGNAL = 1
    COMPLETE_STEP = 2
    FAIL_STEP = 3
    START_STEP = 4
    START_CHILD = 5
    SET_STATE = 6
    WARN = 7
    WAIT = 8
    BEGIN_STEP = 9
    RECEIVE_SIGNAL = 10
    AWAIT_CHILD = 11
    SLEEP = 12
    FAIL_STEP_AND_GIVE_BACK = 13
    PEEK_EVENTS = 14
    GET_EVENTS = 15
    COMMIT_PREPARE = 16
    BEGIN_MUTATION = 17
    FINISH_MUTATION = 18
    CANCEL = 19
    TERMINATE = 20
    SUSPEND = 21
    RELEASE = 22
    COMPLETE = 23
    FAIL = 24
    CONTINUE_AS_NEW = 25
    COMMIT_HANDLER = 26


# Kinds that end a run, and with it concern its parent, whose row is locked along.
ENDING = frozenset({Kind.CANCEL, Kind.TERMINATE, Kind.COMPLETE, Kind.FAIL, Kind.CONTINUE_AS_NEW})
# Kinds after which the token is worth nothing.
GIVING_AWAY = frozenset(
    {
        Kind.SUSPEND,
        Kind.RELEASE,
        Kind.COMPLETE,
        Kind.FAIL,
        Kind.CONTINUE_AS_NEW,
        Kind.SLEEP,
        Kind.FAIL_STEP_AND_GIVE_BACK,
        Kind.COMMIT_HANDLER,
    }
)
# Kinds that only handler runs of automations use, and kinds that these do not use.
HANDLING = frozenset(
    {
        Kind.PEEK_EVENTS,
        Kind.GET_EVENTS,
        Kind.COMMIT_PREPARE,
        Kind.BEGIN_MUTATION,
        Kind.FINISH_MUTATION,
        Kind.COMMIT_HANDLER,
    }
)
NOT_HANDLING = frozenset({Kind.COMPLETE, Kind.CONTINUE_AS_NEW})
# Kinds of clients, which carry no token.
UNFENCED = frozenset({Kind.SIGNAL, Kind.CANCEL, Kind.TERMINATE})


# What the bad end of a handler run means for its automation: try again later, or block it.
Fault = Literal["TRANSIENT", "NEEDS_ATTENTION", "DEFECT", "POISONED"]


class Busy:
    """The answer of an operation whose run somebody else has locked: it is to be tried again."""


BUSY = Busy()


@dataclass(slots=True, eq=False)
class Operation:
    """One thing to do for one run. `answer` is None until it was applied; then a message of the contract, ErrorDetail
    when it was refused, or BUSY.
    """

    kind: Kind
    namespace: str
    run_id: str
    body: Any
    token: str | None = None
    # Later operations of the same run and token fall with this one when it is refused.
    chained: bool = False
    # Recognises a repeated operation that gives the run away.
    operation_id: str | None = None
    # The end of a handler run: queue and id of the worker that sent it, whose place becomes free by it.
    sender: tuple[str, str] | None = None
    # A free place at a worker, if what the operation starts can be handed over at once. A start: the seed it got, and
    # when it was stored.
    slot: Slot | None = None
    seed: int = 0
    now: datetime | None = None
    answer: Message | Busy | None = None

    @property
    def refused(self) -> bool:
        return isinstance(self.answer, ErrorDetail)


@dataclass(frozen=True, slots=True)
class Slot:
    """A free place at a worker and the token a run put there would get."""

    worker_id: str
    token: str
    # What the worker can run, where that is not known from the operation.
    types: frozenset[str] = frozenset()
    # Suspended runs that the worker says it keeps in memory, by id, with the tokens they were suspended with.
    residents: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A run on its way to the worker whose slot it took."""

    slot: Slot
    delivery: Delivery


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that reached its terminal state, with what whoever waits for it wants to know, as far as it was at hand."""

    run_id: str
    status: str
    parent_run_id: str | None
    output: Payload | None = None
    # The stored error of a run that did not end well.
    error: str | None = None
    # The run that goes on in its place: whoever waits for this one waits for that.
    continued_as: str | None = None
    # Its type, and the milliseconds from its creation to its end; for charts.
    took: tuple[str, float] = ("", 0.0)
    # A handler run: its automation, and what its end means for that.
    automation: str | None = None
    fault: Fault = "TRANSIENT"
    # The template of which the next run waits for this end.
    frees: str | None = None


@dataclass(slots=True)
class Outcome:
    """What a committed flush means for the rest of the server: whom to wake, tell and hand over to."""

    # The database's time of the flush, for leases that were given in it.
    now: datetime | None = None
    # Starts that were stored as already claimed.
    handed: list[Operation] = field(default_factory=list)
    # Handler runs that were chosen and stored as already claimed.
    claimed: list[Claimed] = field(default_factory=list)
    # Queues that have something due now.
    due: set[str] = field(default_factory=set)
    # Queues and the time something becomes due.
    later: dict[str, datetime] = field(default_factory=dict)
    # The types of runs that exist since this flush, whoever or whatever started them.
    started: list[str] = field(default_factory=list)
    # The types of runs that were claimed, and for how many milliseconds each had been due.
    waited: list[tuple[str, float]] = field(default_factory=list)
    # Runs that reached a terminal state.
    ended: list[Ended] = field(default_factory=list)
    # A run got a deadline that may be sooner than any other.
    deadline: bool = False
    # When an automation may next move by time alone, as far as this flush changed that.
    alarm: datetime | None = None
    # Runs held by a worker for which a fact arrived: signal, child's end, cancel.
    told: list[str] = field(default_factory=list)

    def becomes_due(self, task_queue: str, at: datetime | None) -> None:
        """Something of this queue is due at `at`; None: now."""
        if at is None:
            self.due.add(task_queue)
        elif task_queue not in self.later or at < self.later[task_queue]:
            self.later[task_queue] = at

    def rings(self, at: datetime | None) -> None:
        """An automation may move at `at`, if nothing moves it before."""
        if at is not None and (self.alarm is None or at < self.alarm):
            self.alarm = at
