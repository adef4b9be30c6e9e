"""Letters: signals that a caller stored inside its own transaction, which wakes nobody. Whoever finds one locks its run
by key, makes it due if it waits for the signal, and marks the letter as heard, in one transaction. Until then it is a
signal like any other: a run that is claimed meanwhile receives it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from asyncpg.connection import Connection

from kagzi.store import signals
from kagzi.store.operation import Outcome
from kagzi.store.queries import Queries

_sql = Queries("letters.sql")
_unheard = _sql.bind("unheard", columns=("namespace", "signal_id"))
_addressees = _sql.bind("addressees", columns=("signal_id", "name", "run_id"))
_lock = _sql.bind("lock", columns=("run_id",))
_hear = _sql.bind("hear", columns=("signal_id",))


async def unheard(connection: Connection, batch: int) -> dict[str, list[str]]:
    """Letters that nobody has heard yet, by namespace."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for row in await _unheard.fetch(connection, batch=batch):
        found[row["namespace"]].append(str(row["signal_id"]))
    return dict(found)


async def hear(connection: Connection, namespace: str, signal_ids: Sequence[str]) -> tuple[int, Outcome]:
    """Wakes the runs of these letters and answers how many were heard; a run that somebody has locked is left."""
    outcome = Outcome()
    letters = await _addressees.fetch(connection, namespace=namespace, signal_ids=signal_ids)
    run_ids = {str(row["run_id"]) for row in letters if row["run_id"] is not None}
    locked = {str(row["run_id"]) for row in await _lock.fetch(connection, namespace=namespace, run_ids=list(run_ids))}
    heard = [row for row in letters if row["run_id"] is None or str(row["run_id"]) in locked]
    if not heard:
        return 0, outcome
    done = await _hear.fetch(
        connection,
        namespace=namespace,
        signal_ids=[row["signal_id"] for row in heard],
        run_ids=[row["run_id"] for row in heard],
    )
    ours = {row["signal_id"] for row in done}
    waking = [row for row in heard if row["signal_id"] in ours and row["run_id"] is not None]
    await signals.wake(connection, namespace, [(str(row["run_id"]), row["name"]) for row in waking], outcome)
    return len(done), outcome
