"""The short way of what runs do most: begin, record results, end well. One statement that is its own transaction holds
the fence, the results and the ends of a whole batch, so that a flush is one round trip and one commit. It writes a run
whole or leaves it to the longer way, and never decides anything that the longer way would decide otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import COMPLETED
from kagzi.protocol.v1.worker_pb2 import EndAnswer
from kagzi.store import rows, runs, steps
from kagzi.store.operation import Ended, Kind, Operation, Outcome
from kagzi.store.queries import Queries
from kagzi.store.rules import Rules

_sql = Queries("express.sql")
_advance = _sql.bind("advance", columns=("run_id", "workflow_type", "took_ms"))

_COMPLETED = EndAnswer(status=COMPLETED)


def starts(operations: Sequence[Operation]) -> list[Operation]:
    """The starts that nobody else's id or lineage can stand against."""
    return [
        operation
        for operation in operations
        if operation.kind is Kind.START and not operation.body.external_id and not operation.body.parent_run_id
    ]


async def start(connection: Connection, namespace: str, part: Sequence[Operation], lease: timedelta) -> Outcome | None:
    """Stores the runs of these starts. Answers all, or none when one of them was not stored: its run id is known."""
    outcome = Outcome()
    return outcome if await runs.insert(connection, namespace, part, lease, outcome) else None


def advances(operations: Sequence[Operation], rules: Rules) -> list[list[Operation]]:
    """The operations of each run that only records first results, none of them large, and may end well with them."""
    share = rules.history_share
    by_run: dict[str, list[Operation] | None] = {}
    for operation in operations:
        if operation.kind is Kind.START:
            continue
        group = by_run.setdefault(operation.run_id, [])
        if group is None:
            continue
        if _plain(operation, share) and not (group and _follows_badly(group[-1], operation)):
            group.append(operation)
        else:
            by_run[operation.run_id] = None
    return [group for group in by_run.values() if group]


def _plain(operation: Operation, share: int) -> bool:
    body = operation.body
    match operation.kind:
        case Kind.COMPLETE_STEP:
            numbered = body.attempt_number == 1 and body.position and body.completed_seq
            alone = not body.signal_id and not body.child_run_id
            return bool(numbered) and alone and len(body.output.data) <= share
        case Kind.COMPLETE:
            return True
    return False


def _follows_badly(last: Operation, operation: Operation) -> bool:
    return last.kind is Kind.COMPLETE or last.token != operation.token


def _slack(group: Sequence[Operation], rules: Rules) -> int:
    top = max((operation.body.position for operation in group if operation.kind is Kind.COMPLETE_STEP), default=0)
    return rules.history_slack(top)


async def advance(
    connection: Connection, namespace: str, part: Sequence[Sequence[Operation]], rules: Rules
) -> Outcome | None:
    """Records results and ends runs. What has no answer afterwards took no effect that the longer way would not
    recognise.
    """
    done = [operation for group in part for operation in group if operation.kind is Kind.COMPLETE_STEP]
    ends = [group[-1] for group in part if group[-1].kind is Kind.COMPLETE]
    bodies = [operation.body for operation in done]
    outputs = [body.output if body.HasField("output") else None for body in bodies]
    results = [end.body.output if end.body.HasField("output") else None for end in ends]
    found = await _advance.fetch(
        connection,
        namespace=namespace,
        run_ids=[group[0].run_id for group in part],
        tokens=[group[0].token for group in part],
        steps=[len(group) - (group[-1].kind is Kind.COMPLETE) for group in part],
        ends=[group[-1].kind is Kind.COMPLETE for group in part],
        slacks=[_slack(group, rules) for group in part],
        step_run_ids=[operation.run_id for operation in done],
        step_ids=[body.step_id for body in bodies],
        attempt_ids=[body.attempt_id for body in bodies],
        positions=[body.position for body in bodies],
        completed_seqs=[body.completed_seq for body in bodies],
        kinds=[rows.STEP_KIND_NAME[body.kind] for body in bodies],
        input_hashes=[body.input_hash or None for body in bodies],
        outputs=[None if output is None else output.data for output in outputs],
        output_encodings=[None if output is None else output.encoding or None for output in outputs],
        elapsed_us=[body.elapsed_us for body in bodies],
        end_run_ids=[end.run_id for end in ends],
        operation_ids=[end.operation_id for end in ends],
        end_outputs=[None if output is None else output.data for output in results],
        end_encodings=[None if output is None else output.encoding or None for output in results],
    )
    if not found:
        return None
    written = {str(row[0]): row for row in found}
    for group in part:
        if group[0].run_id in written:
            for operation in group:
                operation.answer = steps.ACCEPTED if operation.kind is Kind.COMPLETE_STEP else _COMPLETED
    outcome = Outcome()
    for end, output in zip(ends, results, strict=True):
        row = written.get(end.run_id)
        if row is not None:
            outcome.ended.append(Ended(end.run_id, "COMPLETED", None, output, took=(row[1], row[2])))
    return outcome
