"""Facts: what happened to a run beside its history. Signals, ends of children, resolutions and cancel requests are
stored by whoever causes them; only the holder of the lease puts them into the history, when it hands them to the
code.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from asyncpg.connection import Connection

from kagzi.protocol.v1.worker_pb2 import CancelRequested, ChildEnded, Fact
from kagzi.store import resolutions, rows, signals
from kagzi.store.queries import Queries

_sql = Queries("facts.sql")
_children_ended = _sql.bind(
    "children_ended", columns=("run_id", "child_run_id", "status", "error", "output", "output_encoding")
)
_cancels = _sql.bind("cancels", columns=("run_id", "reason", "late"))
_tokens = _sql.bind("tokens", columns=("run_id", "claim_token", "last_token"))


async def of(connection: Connection, namespace: str, run_ids: Sequence[str]) -> dict[str, list[Fact]]:
    """What is there for each run and not in its history yet; runs with nothing are left out."""
    facts: dict[str, list[Fact]] = defaultdict(list)
    for row in await _cancels.fetch(connection, namespace=namespace, run_ids=run_ids):
        request = CancelRequested(reason=row["reason"], deadline=row["late"])
        facts[str(row["run_id"])].append(Fact(cancel_requested=request))
    for row in await signals.waiting(connection, namespace, run_ids):
        facts[str(row["run_id"])].append(Fact(signal=rows.signal(row)))
    for run_id, ended in await children_ended(connection, namespace, run_ids):
        facts[run_id].append(Fact(child_ended=ended))
    for run_id, resolved in await resolutions.waiting(connection, namespace, run_ids):
        facts[run_id].append(Fact(step_resolved=resolved))
    return dict(facts)


async def children_ended(
    connection: Connection, namespace: str, run_ids: Sequence[str]
) -> list[tuple[str, ChildEnded]]:
    """Children that the runs wait for and that have ended, each with the run that waits."""
    found = await _children_ended.fetch(connection, namespace=namespace, run_ids=run_ids)
    return [
        (
            str(row["run_id"]),
            ChildEnded(
                child_run_id=str(row["child_run_id"]),
                status=rows.RUN_STATUS[row["status"]],
                output=rows.payload(row["output"], row["output_encoding"]),
                failure=rows.failure(row["error"]),
            ),
        )
        for row in found
    ]


async def tokens(connection: Connection, namespace: str, run_ids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The token each of these runs is held by, and the one it was last given away with; empty where there is none."""
    found = await _tokens.fetch(connection, namespace=namespace, run_ids=run_ids)
    return {str(row["run_id"]): (rows.identity(row["claim_token"]), rows.identity(row["last_token"])) for row in found}
