"""The phases of a handler run, in their order. A producer produces and commits. A consumer prepares, mutates at most
once, and then always tells what comes next; it goes on after the last phase on record, and what is to be done about a
mutation is decided by the ledger's row alone. Each function answers the operation that ends the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from kagzi.automations import ledger, prepared
from kagzi.automations.contexts import NextContext, PrepareContext, ProducerContext
from kagzi.automations.handlers import Consumer, Producer
from kagzi.automations.outcome import Outcome
from kagzi.automations.preparation import Gone, Preparation
from kagzi.automations.prepared import Prepared
from kagzi.automations.topics import Topics
from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.sdk.errors import ConfigError, PayloadError, Transient

if TYPE_CHECKING:
    from kagzi.automations.run import HandlerRun, Posted

# Events are skipped by people now and then, never all the time.
_MOST_TRIES = 10

# The operation that ends a run; None in place of its body when it was sent and answered already.
Ending = tuple[str, Message | None]


async def perform(run: HandlerRun) -> Ending:
    """Everything that is left of the run."""
    if not run.task.handler:
        raise ConfigError(
            f"{run.handler.automation.name}.{run.handler.name} is a handler of an automation, and is not started by "
            "hand: use `client.automations.run_now`, or publish an event."
        )
    if isinstance(run.handler, Producer):
        return await _produce(run, run.handler)
    return await _consume(run, run.handler)


async def _produce(run: HandlerRun, producer: Producer) -> Ending:
    context = ProducerContext(run)
    record = run.records.attempt("produce")
    arguments = (context, _state(run))
    try:
        state, elapsed_us = await run.body(record, producer.function, arguments, timeout=producer.timeout)
    finally:
        context.close()
    commit = pb.CommitHandler(
        step=record.phase(run.records.ended(record), elapsed_us),
        inputs=context.publications.inputs(),
        publishes=context.publications.events(),
    )
    return await _commit(run, commit, state)


async def _consume(run: HandlerRun, consumer: Consumer) -> Ending:
    if run.task.HasField("prepared"):
        stored = run.task.prepared
        data = run.decode(stored.data if stored.HasField("data") else None, Any, "prepared")
        return await _carry_out(run, consumer, prepared.from_wire(stored, data), None)
    for tries in range(_MOST_TRIES):
        preparation = await _prepare(run, consumer, () if tries else run.task.pending)
        try:
            return await _carry_out(run, consumer, preparation.work, preparation)
        except Gone:
            run.logger.info("prepare runs again: some of what it wanted is no longer pending")
    raise Transient(f"what {consumer.name!r} wanted was gone each time before it could be reserved")


async def _prepare(run: HandlerRun, consumer: Consumer, pending: Sequence[pb.PeekedTopic]) -> Preparation:
    """Asks the consumer what it wants."""
    record = run.records.attempt("prepare")
    topics = Topics(run, pending)
    context = PrepareContext(run, topics)
    arguments = (context, _state(run))
    prepare = consumer.bound("prepare")
    try:
        given, elapsed_us = await run.body(record, prepare, arguments, timeout=consumer.timeout, waits=topics.forget)
    finally:
        context.close()
    work = prepared.checked(given, consumer.name, consumer.subscribes)
    data = None if work.data is None else run.encode(work.data, Any, "prepared")
    step = record.phase(run.records.ended(record), elapsed_us)
    commit = pb.CommitPrepare(step=step, prepared=prepared.to_wire(work, data))
    # What `mutate` gets is what another worker would get after a crash: the stored copy.
    stored = prepared.from_wire(commit.prepared, run.decode(data, Any, "prepared"))
    return Preparation(run, record, commit, stored)


async def _carry_out(run: HandlerRun, consumer: Consumer, work: Prepared, preparation: Preparation | None) -> Ending:
    """Everything behind `prepare`. Raises Gone when that is not stored because it has to run again."""
    commit = None if consumer.has("next") else partial(_post_commit, run)
    settled = await ledger.settle(run, consumer, work, preparation, commit)
    if not isinstance(settled, Outcome):
        return settled
    if commit is None:
        if preparation is not None:
            await preparation.stored()
        return await _next(run, consumer, work, settled)
    if preparation is not None:
        preparation.send()
    posted = commit()
    if preparation is not None:
        await preparation.stored()
    await run.answer(posted)
    return "commit_handler", None


def _post_commit(run: HandlerRun) -> Posted:
    """The end of a consumer that has no `next`: no code stands between it and what was before."""
    record = run.records.attempt("next")
    return run.post("commit_handler", pb.CommitHandler(step=record.phase(run.records.ended(record))))


async def _next(run: HandlerRun, consumer: Consumer, work: Prepared, outcome: Outcome) -> Ending:
    record = run.records.attempt("next")
    context = NextContext(run, _state(run))
    arguments = (context, work, outcome)
    try:
        state, elapsed_us = await run.body(record, consumer.bound("next"), arguments, timeout=consumer.timeout)
    finally:
        context.close()
    commit = pb.CommitHandler(
        step=record.phase(run.records.ended(record), elapsed_us), publishes=context.publications.events()
    )
    return await _commit(run, commit, state)


async def _commit(run: HandlerRun, commit: pb.CommitHandler, state: Any) -> Ending:
    if state is not None:
        commit.state.CopyFrom(run.encode(state, run.handler.state, "handler"))
    await run.ask("commit_handler", commit)
    return "commit_handler", None


def _state(run: HandlerRun) -> Any:
    """The handler's own state, as every run gets a copy of it."""
    if not run.task.HasField("state"):
        return None
    try:
        return run.decode(run.task.state, run.handler.state, "handler")
    except PayloadError as error:
        raise PayloadError(
            f"The state of {run.handler.name!r} is stored as something else than it is declared to be now: {error} "
            "Declare what takes both, and return the new one."
        ) from error
