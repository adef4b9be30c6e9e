"""What needs a person, the most urgent first. Reads alone; each count stops at 1,000 and its cost is bounded.
Effects of unknown outcome and blocked automations join the list together with what resolves them.
"""

from __future__ import annotations

from asyncpg.connection import Connection

from kagzi.protocol.v1.admin_pb2 import (
    ATTENTION_BROKEN_SCHEDULES,
    ATTENTION_FAILED_RUNS,
    ATTENTION_PARKED_RUNS,
    ATTENTION_SILENT_WORKERS,
    ATTENTION_UNSERVED_RUNS,
    Attention,
)
from kagzi.store.queries import Queries

_sql = Queries("attention.sql")
_FOUND = ("count", "subjects")
_failed = _sql.bind("failed", columns=_FOUND)
_parked = _sql.bind("parked", columns=_FOUND)
_unserved = _sql.bind("unserved", columns=_FOUND)
_broken = _sql.bind("broken", columns=_FOUND)
_silent = _sql.bind("silent", columns=_FOUND)

_MOST = 1_000


async def attention(connection: Connection, namespace: str) -> list[Attention]:
    """What needs a person now."""
    found = (
        (
            ATTENTION_PARKED_RUNS,
            await _parked.fetch(connection, namespace=namespace),
            "run",
            "parked: their code no longer matches their history. Deploy code that fits, or resume them",
        ),
        (
            ATTENTION_UNSERVED_RUNS,
            await _unserved.fetch(connection, namespace=namespace),
            "run",
            "due, and no worker serves their queue, type and version. Start one that does",
        ),
        (
            ATTENTION_BROKEN_SCHEDULES,
            await _broken.fetch(connection, namespace=namespace),
            "schedule",
            "unable to fire. Look at the error of each schedule and update it",
        ),
        (
            ATTENTION_FAILED_RUNS,
            await _failed.fetch(connection, namespace=namespace),
            "run",
            "failed within the last day and not repeated. Look at the error of each run, then retry it",
        ),
        (
            ATTENTION_SILENT_WORKERS,
            await _silent.fetch(connection, namespace=namespace),
            "worker",
            "silent without a goodbye within the last day. See whether their processes run",
        ),
    )
    return [
        Attention(
            code=code,
            count=row["count"],
            sentence=f"{_many(row['count'], noun)} {sentence}.",
            subjects=row["subjects"],
        )
        for code, [row], noun, sentence in found
        if row["count"]
    ]


def _many(count: int, noun: str) -> str:
    if count == 1:
        return f"1 {noun} is"
    return f"{count:,} {noun}s{' or more' if count >= _MOST else ''} are"
