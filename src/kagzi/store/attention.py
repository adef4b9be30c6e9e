"""What needs a person, the most urgent first. One read of bounded cost, whatever is stored; each count stops at 100."""

from __future__ import annotations

from asyncpg.connection import Connection

from kagzi.protocol.v1 import admin_pb2 as pb
from kagzi.store.queries import Queries

_sql = Queries("attention.sql")
_attention = _sql.bind("attention", columns=("kind", "count", "subjects"))

_MOST = 100
# The most urgent first. What is said of one, of several, and what to do.
_SENTENCES = {
    "UNKNOWN_STEPS": (
        "run waits for somebody to say what became of a step.",
        "runs wait for somebody to say what became of a step.",
        "Find out outside, then resolve it.",
    ),
    "BLOCKED_AUTOMATIONS": (
        "automation is blocked and runs nothing more.",
        "automations are blocked and run nothing more.",
        "See why, and resolve it.",
    ),
    "PARKED_RUNS": (
        "run is parked: the code no longer matches its history.",
        "runs are parked: the code no longer matches their history.",
        "Deploy code that fits, or resume.",
    ),
    "UNSERVED_RUNS": (
        "run is due, and no worker serves its queue, type and version.",
        "runs are due, and no worker serves their queue, type and version.",
        "Start one that does.",
    ),
    "BROKEN_SCHEDULES": (
        "schedule cannot fire.",
        "schedules cannot fire.",
        "Look at the error and update it.",
    ),
    "FAILED_RUNS": (
        "run failed within the last day and was not repeated.",
        "runs failed within the last day and were not repeated.",
        "Look at the error, then retry.",
    ),
    "SILENT_WORKERS": (
        "worker fell silent within the last day without a goodbye.",
        "workers fell silent within the last day without a goodbye.",
        "See whether the process runs.",
    ),
}


async def attention(connection: Connection, namespace: str) -> list[pb.Attention]:
    """What needs a person now."""
    found = {row["kind"]: row for row in await _attention.fetch(connection, namespace=namespace)}
    return [
        pb.Attention(
            code=pb.AttentionCode.Value(f"ATTENTION_{kind}"),
            count=found[kind]["count"],
            sentence=_sentence(found[kind]["count"], *said),
            subjects=found[kind]["subjects"],
        )
        for kind, said in _SENTENCES.items()
        if kind in found
    ]


def _sentence(count: int, one: str, several: str, advice: str) -> str:
    if count == 1:
        return f"1 {one} {advice}"
    return f"{count}{' or more' if count >= _MOST else ''} {several} {advice}"
