"""Retry and fork: a new run with the part of another's history that came before a step. "Before" means a smaller
position. Results are kept as they were handed over, running timers keep their end, signals that no kept step received
can be received again, and everything else happens anew. An effect whose outcome nobody knows is never repeated on a
guess: it is to be resolved first. The old run is not changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import uuid_utils
from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import Payload
from kagzi.store import errors, namespaces, resolutions, rows
from kagzi.store.operation import Outcome
from kagzi.store.queries import Queries

_sql = Queries("forks.sql")
_source = _sql.bind("source", columns=("status", "automation", "failed_step"))
_made = _sql.bind("made", columns=("status", "retried_from", "external_id"))
_records = _sql.bind(
    "records",
    columns=(
        "step_id",
        "attempt_id",
        "kind",
        "status",
        "position",
        "completed_seq",
        "effect",
        "resolution",
        "resolution_output",
        "resolution_encoding",
        "resolution_reason",
    ),
)
_store = _sql.bind("store", columns=("task_queue", "workflow_type", "external_id"))
_keep_steps = _sql.bind("keep_steps")
_signals = _sql.bind("signals", columns=("signal_id", "received_by"))
_keep_signals = _sql.bind("keep_signals")


# Kinds of steps that hand the code a value of its users'.
_GIVES = ("FUNCTION", "SIGNAL", "CHILD_WORKFLOW")


@dataclass(frozen=True, slots=True)
class Forked:
    """The run that exists now."""

    status: str
    took_external_id: bool


@dataclass(frozen=True, slots=True)
class _Kept:
    """A record that is copied; `changed` when its result is another than before."""

    step_id: str
    attempt_id: object
    kind: str
    status: str
    completed_seq: int | None
    changed: bool = False
    output: Payload | None = None
    error: str | None = None


async def retry(connection: Connection, namespace: str, run_id: str, new_run_id: str, outcome: Outcome) -> Forked:
    """Starts a FAILED or CANCELLED run again from the step that failed, or from where it was cancelled."""
    source = await _take(connection, namespace, run_id)
    known = await _known(connection, namespace, run_id, new_run_id)
    if known is not None:
        return known
    if source["status"] not in ("FAILED", "CANCELLED"):
        message = f"run {run_id} is {source['status']}: only a FAILED or CANCELLED run is retried. Fork takes any"
        raise errors.precondition(message, run_id)
    records = await _records.fetch(connection, namespace=namespace, run_id=run_id)
    kept = _kept(records, _failed_at(records, source["failed_step"]), {})
    return await _make(connection, namespace, run_id, new_run_id, kept, outcome, take=True)


async def fork(
    connection: Connection,
    namespace: str,
    run_id: str,
    new_run_id: str,
    step_id: str,
    outcome: Outcome,
    *,
    outputs: Mapping[str, Payload],
    input: Payload | None = None,
) -> Forked:
    """Starts a run again from a step, with other outputs of earlier steps or another input if given."""
    await _take(connection, namespace, run_id)
    known = await _known(connection, namespace, run_id, new_run_id)
    if known is not None:
        return known
    records = await _records.fetch(connection, namespace=namespace, run_id=run_id)
    position = next((record["position"] for record in records if record["step_id"] == step_id), None)
    if position is None:
        raise errors.not_found("step", step_id, "step_id")
    kept = _kept(records, position, outputs)
    return await _make(connection, namespace, run_id, new_run_id, kept, outcome, input=input)


async def _take(connection: Connection, namespace: str, run_id: str) -> Record:
    """Locks the run whose history is taken."""
    await namespaces.require(connection, namespace)
    source = await _source.first(connection, namespace=namespace, run_id=run_id)
    if source is None:
        raise errors.not_found("run", run_id, "run_id")
    if source["automation"] is not None:
        message = f"run {run_id} belongs to automation {source['automation']!r}, which repeats its work itself"
        raise errors.precondition(message, run_id)
    return source


async def _known(connection: Connection, namespace: str, run_id: str, new_run_id: str) -> Forked | None:
    """The answer to a request that was made before."""
    made = await _made.first(connection, namespace=namespace, run_id=new_run_id)
    if made is None:
        return None
    if str(made["retried_from"]) != run_id:
        raise errors.conflict(f"run id {new_run_id} is taken: make another", new_run_id, "new_run_id")
    return Forked(made["status"], made["external_id"] is not None)


def _failed_at(records: Sequence[Record], failed_step: str | None) -> int | None:
    """The position from which a retry happens anew; None when everything on record is kept."""
    positions = [record["position"] for record in records if record["kind"] == "CANCEL"]
    named = [record["position"] for record in records if record["step_id"] == failed_step]
    last = max(
        (record for record in records if record["completed_seq"]),
        key=lambda record: record["completed_seq"],
        default=None,
    )
    if named:
        positions += named
    elif last is not None and last["status"] == "FAILED":
        # Nobody said which step's error left the workflow, but nothing was handed to its code after this one.
        positions.append(last["position"])
    return min(positions, default=None)


def _kept(records: Sequence[Record], before: int | None, outputs: Mapping[str, Payload]) -> list[_Kept]:
    early = [record for record in records if before is None or record["position"] < before]
    # What gets its result only here is handed over after what was handed over before.
    numbers = count(max((record["completed_seq"] or 0 for record in early), default=0) + 1)
    kept = [step for record in early if (step := _keep(record, outputs.get(record["step_id"]), numbers)) is not None]
    for step_id in outputs.keys() - {step.step_id for step in kept if step.completed_seq}:
        message = f"outputs names {step_id!r}, which has no result before the step from which the run is forked"
        raise errors.invalid("outputs", message, step_id)
    return kept


def _keep(record: Record, output: Payload | None, numbers: Iterator[int]) -> _Kept | None:
    """What becomes of one record; None when it happens anew."""
    if output is not None and record["kind"] not in _GIVES:
        message = f"outputs names {record['step_id']!r}, which is a {record['kind']} and gives its run no value"
        raise errors.invalid("outputs", message, record["step_id"])
    kept = _Kept(record["step_id"], record["attempt_id"], record["kind"], record["status"], record["completed_seq"])
    in_doubt = record["effect"] and record["status"] in ("RUNNING", "UNKNOWN")
    if output is not None and (kept.completed_seq or in_doubt):
        seq = kept.completed_seq or next(numbers)
        return replace(kept, status="COMPLETED", completed_seq=seq, changed=True, output=output)
    if in_doubt:
        return _resolved(record, kept, numbers)
    if kept.completed_seq or (kept.kind in ("SLEEP", "SIGNAL") and kept.status == "RUNNING"):
        return kept
    return None


def _resolved(record: Record, kept: _Kept, numbers: Iterator[int]) -> _Kept | None:
    """An effect in doubt, as it was resolved; one that was not applied happens anew."""
    resolution = record["resolution"]
    if resolution is None:
        message = (
            f"nobody knows whether the effect of step {kept.step_id!r} happened: say so with ResolveStep, or name its "
            "output when forking"
        )
        raise errors.precondition(message, kept.step_id)
    if resolution == "NOT_APPLIED":
        return None
    failure = resolutions.failure(resolution, record["resolution_reason"])
    return replace(
        kept,
        status=resolutions.STATUS[resolution],
        completed_seq=next(numbers),
        changed=True,
        output=rows.payload(record["resolution_output"], record["resolution_encoding"]),
        error=None if failure is None else rows.failure_text(failure),
    )


async def _make(
    connection: Connection,
    namespace: str,
    run_id: str,
    new_run_id: str,
    kept: Sequence[_Kept],
    outcome: Outcome,
    *,
    take: bool = False,
    input: Payload | None = None,
) -> Forked:
    stored = None
    # Somebody may take the external id at this moment; the run is then made without it.
    for taking in dict.fromkeys((take, False)):
        stored = stored or await _store.first(
            connection,
            namespace=namespace,
            run_id=run_id,
            new_run_id=new_run_id,
            take=taking,
            cancelled=any(step.kind == "CANCEL" for step in kept),
            changed=input is not None,
            changed_bytes=sum(len(step.output.data) for step in kept if step.output is not None),
            input=None if input is None else input.data,
            input_encoding=None if input is None else input.encoding or None,
        )
    if stored is None:
        raise errors.conflict(f"run id {new_run_id} is taken: make another", new_run_id, "new_run_id")
    signals = await _signals.fetch(connection, namespace=namespace, run_id=run_id)
    signal_ids = [row["signal_id"] for row in signals]
    new_signal_ids = [str(uuid_utils.uuid7()) for _ in signals]
    received = {step.attempt_id for step in kept if step.completed_seq}
    if signals:
        await _keep_signals.execute(
            connection,
            namespace=namespace,
            new_run_id=new_run_id,
            signal_ids=signal_ids,
            new_signal_ids=new_signal_ids,
            received=[row["received_by"] in received for row in signals],
        )
    if kept:
        await _keep_steps.execute(
            connection,
            namespace=namespace,
            run_id=run_id,
            new_run_id=new_run_id,
            step_ids=[step.step_id for step in kept],
            statuses=[step.status for step in kept],
            completed_seqs=[step.completed_seq for step in kept],
            changed=[step.changed for step in kept],
            outputs=[None if step.output is None else step.output.data for step in kept],
            output_encodings=[None if step.output is None else step.output.encoding or None for step in kept],
            errors=[step.error for step in kept],
            signal_ids=signal_ids,
            new_signal_ids=new_signal_ids,
        )
    outcome.becomes_due(stored["task_queue"], None)
    outcome.started.append(stored["workflow_type"])
    return Forked("PENDING", stored["external_id"] is not None)
