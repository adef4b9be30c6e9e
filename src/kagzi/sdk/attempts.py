"""Attempts of steps: how a step that the code asked for begins. A plain body begins once every result the code has got
is durable and the lease is young; an effect only when its intent is durable too; everything else goes on record and
waits.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import FUNCTION, STEP_FAILED
from kagzi.sdk import bodies, effects
from kagzi.sdk.children import child_run_id
from kagzi.sdk.definition import result_of
from kagzi.sdk.errors import PayloadError
from kagzi.sdk.pending import Completion, Pending, State
from kagzi.sdk.values import failure_of

if TYPE_CHECKING:
    from kagzi.sdk.bodies import Ended
    from kagzi.sdk.execution import Execution

_RECHECK_SECS = 0.2


def open_up(run: Execution, pending: Pending) -> None:
    """A step the code asked for, now that the run is live: a body may run, anything else goes on record."""
    if pending.request.kind == FUNCTION:
        effects.resume(run, pending) if effects.doubtful(pending) else _schedule(run, pending)
        return
    run.agenda.set(pending, State.HELD)
    pending.first_attempt()
    record = pending.request.record
    if record is not None and record.HasField("wake_at"):
        pending.due_us = record.wake_at.ToMicroseconds()
        pending.duration_ms = None
    if pending.recorded:
        return
    child = pending.start_child
    if child is None:
        pending.recorded = True
        run.send("step_started", pending.started(), partial(_timer_started, run, pending))
        return
    child.attempt_id = pending.attempt_id
    child.child.run_id = pending.child_run_id = child_run_id(pending.attempt_id)
    if run.sitting is not None:
        run.sitting.mark(child.child)
    if child.start_only:
        run.handover.add(Completion(pending))
    else:
        pending.recorded = True
        run.send("start_child", child, partial(_child_started, run, pending))


def _schedule(run: Execution, pending: Pending) -> None:
    """A plain step: its first attempt, the one after a crash, or the next one when its delay is over."""
    record = pending.request.record
    pending.attempt_number = 0 if record is None else record.attempt_number
    if record is not None and record.status == STEP_FAILED:
        pending.due_us = record.retry_at.ToMicroseconds()
        run.agenda.set(pending, State.HELD)
        return
    pending.next_attempt()
    run.agenda.set(pending, State.WAITING)


def _child_started(run: Execution, pending: Pending, answer: pb.Answer | None) -> None:
    if answer is not None and answer.HasField("start_child"):
        pending.child_run_id = answer.start_child.child_run_id
        run.turn()


def _timer_started(run: Execution, pending: Pending, answer: pb.Answer | None) -> None:
    pending.duration_ms = None
    if answer is not None and answer.HasField("step_started"):
        run.waits.observe(answer.step_started.now_us)
        if answer.step_started.HasField("wake_at_us"):
            pending.due_us = answer.step_started.wake_at_us
    run.turn()


def begin_bodies(run: Execution) -> None:
    """Begins the bodies that wait, unless something the code has got is not durable yet."""
    if run.handover.unacknowledged or not run.agenda.waiting or run.draining:
        return
    if not run.host.may_begin(run):
        # The lease is too old; a heartbeat renews it, or says that it is lost.
        asyncio.get_running_loop().call_later(_RECHECK_SECS, run.turn)
        return
    for pending in run.agenda.take_waiting():
        run.agenda.set(pending, State.RUNNING)
        if pending.effect:
            pending.recorded = True
            run.send("step_started", pending.started(), partial(_intent_durable, run, pending))
        else:
            pending.withdraw = run.host.send_soon(run, "step_started", pending.started)
            _run_body(run, pending)


def _intent_durable(run: Execution, pending: Pending, _: pb.Answer | None = None) -> None:
    """An effect may begin, unless it was given up or the lease grew old meanwhile."""
    if pending.state is not State.RUNNING or run.over or run.draining:
        return
    if run.host.may_begin(run):
        _run_body(run, pending)
    else:
        asyncio.get_running_loop().call_later(_RECHECK_SECS, _intent_durable, run, pending)


def _run_body(run: Execution, pending: Pending) -> None:
    step = pending.step
    assert step is not None
    pending.begun = True
    ended: Ended = partial(_body_ended, run, pending)
    span = None if run.sitting is None else run.sitting.body(pending, pending.context, ended)
    stop = bodies.run(
        step.function,
        pending.arguments,
        pending.keywords,
        current=run.current(pending),
        context=pending.context if span is None else span.context,
        timeout=step.timeout,
        executor=run.host.executor,
        ended=ended if span is None else span.ended,
        may_begin=partial(run.host.may_begin, run),
    )
    pending.stop = stop if span is None else span.stopping(stop)


def _body_ended(run: Execution, pending: Pending, result: Any, error: BaseException | None, elapsed_us: int) -> None:
    """A step's body has ended; called on the worker's loop."""
    if run.over or pending.state is not State.RUNNING:
        return
    pending.stop = None
    if error is None:
        assert pending.step is not None
        try:
            output = run.values.encode(result, result_of(pending.step.function), "step")
        except PayloadError as refused:
            # The body has done its work: only its result cannot be kept, today or tomorrow.
            run.complete(Completion(pending, failure=failure_of(refused), elapsed_us=elapsed_us))
        else:
            run.complete(Completion(pending, output=output, elapsed_us=elapsed_us))
        return
    if isinstance(error, asyncio.CancelledError):
        error = RuntimeError("the step's body was cancelled from within")
    if pending.effect and not effects.proves_absence(error):
        effects.doubt(run, pending, failure_of(error), elapsed_us)
    else:
        run.complete(Completion(pending, failure=failure_of(error), elapsed_us=elapsed_us))
