"""The ledger's row of a consumer's run, and what it means. The intent of a mutation is durable before the tool is
called; from then on the row alone decides. Whoever finds a row in flight, after a crash or an error, asks the
reconciler; nothing ever calls the tool a second time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, assert_never

import uuid_utils
from google.protobuf.message import Message

from kagzi.automations import mutation as mutations
from kagzi.automations import parameters
from kagzi.automations.contexts import MutateContext
from kagzi.automations.handlers import Consumer
from kagzi.automations.mutation import Mutation
from kagzi.automations.outcome import Outcome
from kagzi.automations.preparation import Preparation
from kagzi.automations.prepared import Prepared
from kagzi.automations.records import CHECK, RECONCILE, Record
from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1 import worker_pb2 as worker
from kagzi.protocol.v1.common_pb2 import Failure, Payload
from kagzi.sdk.errors import Absent, Applied, NotApplied, PayloadError, Unclear, reconciliation
from kagzi.sdk.values import failure_of

if TYPE_CHECKING:
    from kagzi.automations.run import HandlerRun, Posted

# What is due in so little time is due: our clock is the server's, less the time that its word took.
_SOON_US = 250_000

Settled = Outcome | tuple[str, Message | None]
_Asked = tuple[Mutation[..., Any], Payload]


# Sends the end of the run where no code stands before it.
Commit = Callable[[], "Posted"]


async def settle(
    run: HandlerRun, consumer: Consumer, work: Prepared, preparation: Preparation | None, commit: Commit | None
) -> Settled:
    """Brings the mutation of a run to its end: the outcome for `next`, or the operation that ends the run here. Without
    a `next`, which `commit` says, the end of the run may leave along with the end of the mutation.
    """
    if run.task.HasField("mutation"):
        return await _go_on(run, consumer, run.task.mutation)
    if not work.reserved or not consumer.has("mutate"):
        return Outcome("none")
    return await _mutate(run, consumer, work, preparation, commit)


async def _mutate(
    run: HandlerRun, consumer: Consumer, work: Prepared, preparation: Preparation | None, commit: Commit | None
) -> Settled:
    record = run.records.attempt("mutate")
    try:
        asked, elapsed_us = await _ask(run, consumer, work, record, preparation)
        beginning = None if asked is None else _begin(run, *asked, record, elapsed_us, preparation)
    except Exception:
        # It counts only if there was something to mutate for.
        if preparation is not None:
            await preparation.stored()
        raise
    if preparation is not None:
        await preparation.stored()
    if asked is None or beginning is None:
        run.tell("step_completed", record.completed(run.records.ended(record), elapsed_us))
        return Outcome("none")
    begun = (await run.answer(beginning)).mutation_begun
    if not begun.may_call:
        return await _go_on(run, consumer, begun.mutation)
    return await _call(run, consumer, asked[0], record, begun.mutation, asked[1], commit)


async def _ask(
    run: HandlerRun, consumer: Consumer, work: Prepared, record: Record, preparation: Preparation | None
) -> tuple[_Asked | None, int]:
    """What `mutate` wants to be called, and how long it took to say so."""
    context = MutateContext(run)
    send = None if preparation is None else preparation.send
    try:
        _, elapsed_us = await run.body(
            record, consumer.bound("mutate"), (context, work), timeout=consumer.timeout, behind=send
        )
    finally:
        context.close()
    return context.asked, elapsed_us


def _begin(
    run: HandlerRun,
    tool: Mutation[..., Any],
    given: Payload,
    record: Record,
    elapsed_us: int,
    preparation: Preparation | None,
) -> Posted:
    """Sends the intent, right behind what it follows from."""
    if preparation is not None:
        preparation.send()
    begin = pb.BeginMutation(
        step=record.phase(elapsed_us=elapsed_us),
        mutation_id=str(uuid_utils.uuid7()),
        tool=tool.name,
        parameters=given,
        idempotency_key=f"{run.run_id}/mutate",
        has_reconciler=bool(tool.reconcilers),
    )
    return run.post("begin_mutation", begin)


async def _call(
    run: HandlerRun,
    consumer: Consumer,
    tool: Mutation[..., Any],
    record: Record,
    row: pb.Mutation,
    given: Payload,
    commit: Commit | None,
) -> Settled:
    """The one call of the tool."""
    finish = pb.FinishMutation(mutation_id=row.mutation_id)
    elapsed_us = 0
    try:
        # From here on every error but NotApplied is doubt: the tool may have done its work.
        arguments, keywords = parameters.decode(tool.function, run.decode_bytes(given, "mutation"))
        result, elapsed_us = await run.body(
            record,
            tool.function,
            arguments,
            keywords,
            timeout=tool.timeout,
            key=row.idempotency_key,
            intended=True,
        )
        _applied(run, finish, tool, result)
    except NotApplied as error:
        finish.verdict = pb.FinishMutation.VERDICT_NOT_APPLIED
        finish.failure.CopyFrom(failure_of(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, nobody knows whether it happened
        run.logger.warning("nobody knows whether %r happened: %s: %s", tool.name, type(error).__name__, error)
        finish.verdict = pb.FinishMutation.VERDICT_UNCLEAR
        finish.failure.CopyFrom(failure_of(error))
    finish.step.CopyFrom(record.phase(run.records.ended(record), elapsed_us))
    return await _finish(run, consumer, row, finish, commit)


def _applied(run: HandlerRun, finish: pb.FinishMutation, tool: Mutation[..., Any], result: Any) -> None:
    finish.verdict = pb.FinishMutation.VERDICT_APPLIED
    if result is None:
        return
    try:
        finish.result.CopyFrom(run.encode(result, tool.result, "mutation"))
    except PayloadError as error:
        # It happened, which counts; only its result cannot be kept.
        run.logger.warning("the result of %r cannot be stored and is left out: %s", tool.name, error)


async def _finish(
    run: HandlerRun, consumer: Consumer, row: pb.Mutation, finish: pb.FinishMutation, commit: Commit | None = None
) -> Settled:
    """Stores what became of the mutation, and does what the ledger says then."""
    said = finish.verdict == pb.FinishMutation.VERDICT_APPLIED
    finishing = run.post("finish_mutation", finish)
    # The server takes the end of a run only if its mutation is known to be over.
    committing = commit() if commit is not None and said and not run.asked_to_end else None
    answer = (await run.answer(finishing)).mutation_finished
    if answer.status == pb.MUTATION_APPLIED and committing is not None:
        await run.answer(committing)
        return "commit_handler", None
    if answer.status == pb.MUTATION_APPLIED and said:
        run.heed()
        return Outcome(
            "applied", _result(run, consumer, row.tool, finish.result if finish.HasField("result") else None)
        )
    known = run.resolved
    if known is None:
        known = pb.Mutation()
        known.CopyFrom(row)
        known.status = answer.status
        known.ClearField("next_check_at")
        if answer.HasField("check_at"):
            known.next_check_at.CopyFrom(answer.check_at)
        if finish.HasField("failure"):
            known.failure.CopyFrom(finish.failure)
        if answer.status in (pb.MUTATION_APPLIED, pb.MUTATION_SKIPPED):
            # Somebody else knew better, and what they said is with the server.
            return "release", worker.Release(operation_id=str(uuid_utils.uuid4()))
    return await _go_on(run, consumer, known)


async def _go_on(run: HandlerRun, consumer: Consumer, row: pb.Mutation) -> Settled:
    """What the row says is done."""
    run.heed()
    match row.status:
        case pb.MUTATION_APPLIED:
            return Outcome("applied", _result(run, consumer, row.tool, row.result if row.HasField("result") else None))
        case pb.MUTATION_SKIPPED:
            return Outcome("skipped")
        case pb.MUTATION_FAILED:
            return run.failed(NotApplied(row.failure.message or f"{row.tool} did not change anything"))
        case pb.MUTATION_INDETERMINATE:
            return "suspend", _parked(row)
        case _:
            return await _reconcile(run, consumer, row)


async def _reconcile(run: HandlerRun, consumer: Consumer, row: pb.Mutation) -> Settled:
    """Asks whether the mutation happened, when the time for that has come."""
    due_us = row.next_check_at.ToMicroseconds() if row.HasField("next_check_at") else 0
    waiting = run.records.running(CHECK)
    if due_us > run.now_us() + _SOON_US:
        return _wait(run, waiting, due_us)
    if waiting is not None:
        run.tell("step_completed", waiting.elapsed(run.records.ended(waiting)))
    finish = pb.FinishMutation(mutation_id=row.mutation_id, from_reconciler=True)
    record = run.records.occurrence(RECONCILE)
    elapsed_us = 0
    try:
        tool = _tool(consumer, row.tool)
        if tool is None or not tool.reconcilers:
            finish.from_reconciler = False
            answer: Any = Unclear()
        else:
            arguments, keywords = parameters.decode(tool.function, run.decode_bytes(row.parameters, "mutation"))
            answer, elapsed_us = await run.body(
                record,
                tool.reconcilers[0],
                (row.idempotency_key, *arguments),
                keywords,
                timeout=tool.timeout,
                key=row.idempotency_key,
            )
        _answered(run, finish, tool, row.tool, reconciliation(answer))
    except Exception as error:  # noqa: BLE001 - a reconciler that fails has not answered
        run.logger.warning("%r could not be reconciled: %s: %s", row.tool, type(error).__name__, error)
        finish.verdict = pb.FinishMutation.VERDICT_UNCLEAR
        finish.failure.CopyFrom(failure_of(error))
    finish.step.CopyFrom(record.phase(run.records.ended(record), elapsed_us))
    return await _finish(run, consumer, row, finish)


def _answered(
    run: HandlerRun,
    finish: pb.FinishMutation,
    tool: Mutation[..., Any] | None,
    name: str,
    answer: Applied | Absent | Unclear,
) -> None:
    failure = Failure(type=type(answer).__name__)
    match answer:
        case Applied(result):
            assert tool is not None
            _applied(run, finish, tool, result)
            return
        case Absent():
            finish.verdict = pb.FinishMutation.VERDICT_NOT_APPLIED
            failure.message = f"the reconciler of {name!r} says that it did not happen"
        case Unclear():
            finish.verdict = pb.FinishMutation.VERDICT_UNCLEAR
            asked = tool is not None and tool.reconcilers
            failure.message = f"the reconciler of {name!r} cannot say" if asked else f"{name!r} has no reconciler"
        case _:
            assert_never(answer)
    finish.failure.CopyFrom(failure)


def _wait(run: HandlerRun, waiting: Record | None, due_us: int) -> tuple[str, Message]:
    """Gives the run back until the reconciler is to be asked."""
    if waiting is None:
        waiting = run.records.occurrence(CHECK)
        run.tell("step_started", waiting.timer(due_us))
    return "suspend", worker.Suspend(step_ids=[waiting.step_id], operation_id=str(uuid_utils.uuid4()))


def _parked(row: pb.Mutation) -> worker.Suspend:
    """Gives the run back until a person has answered."""
    document = {
        "reason": "indeterminate",
        "message": f"nobody knows whether {row.tool!r} happened: say so with `kagzi automations resolve`",
        "mutation_id": row.mutation_id,
    }
    return worker.Suspend(parked_json=json.dumps(document), operation_id=str(uuid_utils.uuid4()))


def _result(run: HandlerRun, consumer: Consumer, name: str, stored: Payload | None) -> Any:
    """What the mutation returned, as it is declared to."""
    tool = _tool(consumer, name)
    return run.decode(stored, None if tool is None else tool.result, "mutation")


def _tool(consumer: Consumer, name: str) -> Mutation[..., Any] | None:
    """The mutation of this name that the consumer knows."""
    return mutations.find(name, consumer.phase("mutate") or consumer.bound("prepare"))
