"""Effects (`@step(effect=True)`) whose outcome is in doubt. None is ever run again on a guess: a person's answer counts
first, then the reconciler is asked, and without either the run waits for a person.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kagzi.protocol.v1.common_pb2 import STEP_RUNNING, STEP_UNKNOWN, Failure
from kagzi.sdk import bodies
from kagzi.sdk.definition import result_of
from kagzi.sdk.errors import Absent, Applied, NotApplied, PayloadError, reconciliation
from kagzi.sdk.pending import Completion, Pending, State
from kagzi.sdk.values import failure_of

if TYPE_CHECKING:
    from kagzi.sdk.execution import Execution

# A reconciler that cannot say is asked again after this, each time twice as long, this often; then a person is.
_UNCLEAR_FIRST_MS = 10_000
_UNCLEAR_MOST_MS = 600_000
_UNCLEAR_TRIES = 5


def proves_absence(error: BaseException) -> bool:
    """Whether the error of an effect says that it did not happen."""
    return isinstance(error, NotApplied)


def doubtful(pending: Pending) -> bool:
    """Whether the last attempt on record may or may not have happened; also when the code no longer says effect."""
    record = pending.request.record
    return record is not None and record.effect and record.status in (STEP_RUNNING, STEP_UNKNOWN)


def resume(run: Execution, pending: Pending) -> None:
    """An effect whose worker died in the middle, or that waits for a person."""
    record = pending.request.record
    assert record is not None
    pending.continue_attempt()
    if record.status == STEP_RUNNING:
        failure = Failure(type="WorkerLost", message="the worker was lost while the effect was under way")
        doubt(run, pending, failure)
    else:
        pending.in_doubt = True
        pending.unclear = record.unclear
        if record.HasField("retry_at"):
            # Asked when that time has come, or earlier by a person's word.
            pending.due_us = record.retry_at.ToMicroseconds()
            run.agenda.set(pending, State.HELD)
        else:
            ask(run, pending)


def doubt(run: Execution, pending: Pending, failure: Failure, elapsed_us: int = 0) -> None:
    """Nobody knows whether the effect happened: that goes on record, then whoever may know is asked."""
    pending.in_doubt = True
    run.send("step_failed", pending.failed(0, failure, elapsed_us, outcome=STEP_UNKNOWN))
    ask(run, pending)


def hear(run: Execution) -> None:
    """People have said what became of effects: their word counts, whatever a reconciler is about to say."""
    for pending in list(run.agenda.open.values()):
        if pending.in_doubt and pending.attempt_id in run.waits.resolved:
            pending.stop_body()
            ask(run, pending)


def ask(run: Execution, pending: Pending) -> None:
    """Asks whoever may know what became of an effect: a person's answer, then the reconciler, then a person."""
    pending.due_us = None
    resolved = run.waits.resolution(pending)
    if resolved is not None:
        run.complete(resolved)
        return
    step = pending.step
    assert step is not None
    if not step.reconcilers or pending.unclear >= _UNCLEAR_TRIES:
        run.agenda.set(pending, State.HELD)
        run.turn()
        return
    run.agenda.set(pending, State.RUNNING)
    current = run.current(pending)
    pending.stop = bodies.run(
        step.reconcilers[0],
        (current.idempotency_key, *pending.arguments),
        pending.keywords,
        current=current,
        context=pending.context,
        timeout=step.timeout,
        executor=run.host.executor,
        ended=partial(_answered, run, pending),
        may_begin=partial(run.host.may_begin, run),
    )


def _answered(run: Execution, pending: Pending, result: Any, error: BaseException | None, elapsed_us: int) -> None:
    if run.over or pending.state is not State.RUNNING:
        return
    pending.stop = None
    answer = None
    if error is None:
        try:
            answer = reconciliation(result)
        except Exception as refused:  # noqa: BLE001 - whatever a reconciler returns, it is no answer
            error = refused
    if error is not None:
        run.logger.warning("the reconciler of step %r failed: %s: %s", pending.step_id, type(error).__name__, error)
    if isinstance(answer, Applied):
        run.complete(_applied(run, pending, answer, elapsed_us))
    elif isinstance(answer, Absent):
        failure = Failure(type=NotApplied.__name__, message="the reconciler says that the effect did not happen")
        run.complete(Completion(pending, failure=failure))
    else:
        _ask_later(run, pending)


def _ask_later(run: Execution, pending: Pending) -> None:
    """The reconciler could not say, or failed: how often, and when it is asked again, goes on record, so that neither a
    crash nor a deploy begins the count anew; until then the run may rest.
    """
    pause_ms = min(_UNCLEAR_FIRST_MS * 2**pending.unclear, _UNCLEAR_MOST_MS)
    pending.unclear += 1
    message = pending.failed(0, None, outcome=STEP_UNKNOWN)
    message.unclear = pending.unclear
    if pending.unclear < _UNCLEAR_TRIES:
        message.ask_again_ms = pause_ms
        pending.due_us = run.waits.now_us() + pause_ms * 1_000
    run.send("step_failed", message)
    run.agenda.set(pending, State.HELD)
    run.turn()


def _applied(run: Execution, pending: Pending, answer: Applied, elapsed_us: int) -> Completion:
    assert pending.step is not None
    try:
        output = run.values.encode(answer.result, result_of(pending.step.function), "step")
    except PayloadError as refused:
        return Completion(pending, failure=failure_of(refused))
    return Completion(pending, output=output, elapsed_us=elapsed_us)
