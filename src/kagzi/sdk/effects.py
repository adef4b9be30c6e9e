"""Running step bodies for an execution, and what is done when one fails. A plain step that fails is judged by the
server. An effect (`@step(effect=True)`) whose outcome is in doubt is never run again on a guess: its reconciler is
asked, and without an answer the run waits for a person.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kagzi.protocol.v1.common_pb2 import STEP_COMPLETED, STEP_FAILED, STEP_RUNNING, STEP_UNKNOWN, Failure
from kagzi.sdk import bodies
from kagzi.sdk.current import CurrentStep
from kagzi.sdk.definition import result_of
from kagzi.sdk.errors import Absent, Applied, NotApplied, PayloadError, reconciliation
from kagzi.sdk.pending import Completion, Pending, State
from kagzi.sdk.values import failure_of

if TYPE_CHECKING:
    from kagzi.sdk.execution import Execution

# A reconciler that cannot say is asked again after this, each time twice as long, this often; then a person is.
_UNCLEAR_FIRST_SECS = 10.0
_UNCLEAR_MOST_SECS = 600.0
_UNCLEAR_TRIES = 5


def run_body(run: Execution, pending: Pending) -> None:
    """Begins the body of a step that may run."""
    step = pending.step
    assert step is not None
    pending.stop = bodies.run(
        step.function,
        pending.arguments,
        pending.keywords,
        current=current(run, pending),
        timeout=step.timeout,
        executor=run.host.executor,
        ended=lambda result, error, elapsed_us: run.body_ended(pending, result, error, elapsed_us),
    )


def current(run: Execution, pending: Pending) -> CurrentStep:
    """What a body can know of the step it runs for."""
    return CurrentStep(
        namespace=run.host.namespace,
        run_id=run.run_id,
        workflow_attempt=run.delivery.attempts,
        step_id=pending.step_id,
        attempt_id=pending.attempt_id,
        idempotency_key=f"{run.run_id}/{pending.step_id}",
    )


def failed(run: Execution, pending: Pending, error: BaseException, elapsed_us: int) -> None:
    """A body raised. Only an effect that did not say `NotApplied` is in doubt."""
    if isinstance(error, asyncio.CancelledError):
        error = RuntimeError("the step's body was cancelled from within")
    failure = failure_of(error)
    if not pending.effect or isinstance(error, NotApplied | PayloadError):
        run.complete(Completion(pending, failure=failure, elapsed_us=elapsed_us))
        return
    run.send("step_failed", pending.failed(0, failure, elapsed_us, outcome=STEP_UNKNOWN))
    ask(run, pending)


def in_doubt(pending: Pending) -> bool:
    """Whether the step is an effect whose last attempt may or may not have happened."""
    record = pending.request.record
    return pending.effect and record is not None and record.status in (STEP_RUNNING, STEP_UNKNOWN)


def resume(run: Execution, pending: Pending) -> None:
    """An effect whose worker died in the middle, or that waits for a person."""
    record = pending.request.record
    assert record is not None
    pending.attempt_id, pending.attempt_number, pending.recorded = record.attempt_id, record.attempt_number, True
    if record.status == STEP_RUNNING:
        failure = Failure(type="WorkerLost", message="the worker was lost while the effect was under way")
        run.send("step_failed", pending.failed(0, failure, outcome=STEP_UNKNOWN))
    ask(run, pending)


def ask(run: Execution, pending: Pending) -> None:
    """Asks a person's answer first, then the reconciler; without either the run waits."""
    resolved = run.waits.resolved.pop(pending.step_id, None)
    if resolved is not None:
        step = resolved.step
        if step.status == STEP_COMPLETED:
            run.complete(Completion(pending, output=step.output if step.HasField("output") else None))
        elif step.status == STEP_FAILED:
            run.complete(Completion(pending, failure=step.failure))
        return
    step_definition = pending.step
    assert step_definition is not None
    if not step_definition.reconcilers or pending.unclear >= _UNCLEAR_TRIES:
        run.agenda.set(pending, State.HELD)
        run.turn()
        return
    run.agenda.set(pending, State.RUNNING)
    key = current(run, pending)
    pending.stop = bodies.run(
        step_definition.reconcilers[0],
        (key.idempotency_key, *pending.arguments),
        pending.keywords,
        current=key,
        timeout=step_definition.timeout,
        executor=run.host.executor,
        ended=lambda result, error, elapsed_us: _answered(run, pending, result, error, elapsed_us),
    )


def _answered(run: Execution, pending: Pending, result: Any, error: BaseException | None, elapsed_us: int) -> None:
    if pending.state is not State.RUNNING:
        return
    pending.stop = None
    answer = None
    if error is None:
        try:
            answer = reconciliation(result)
        except Exception as refused:  # noqa: BLE001 - whatever a reconciler returns, it is no answer
            error = refused
    assert pending.step is not None
    if isinstance(answer, Applied):
        try:
            output = run.values.encode(answer.result, result_of(pending.step.function), "step")
        except PayloadError as refused:
            run.complete(Completion(pending, failure=failure_of(refused)))
            return
        run.complete(Completion(pending, output=output, elapsed_us=elapsed_us))
    elif isinstance(answer, Absent):
        failure = Failure(type="NotApplied", message="the reconciler says that the effect did not happen")
        run.complete(Completion(pending, failure=failure))
    else:
        # Unclear, or the reconciler itself failed: asked again later, in place; at once where tests move the clock.
        pause = min(_UNCLEAR_FIRST_SECS * 2**pending.unclear, _UNCLEAR_MOST_SECS) if run.host.in_place_us else 0.0
        pending.unclear += 1
        handle = asyncio.get_running_loop().call_later(pause, ask, run, pending)
        pending.stop = handle.cancel
