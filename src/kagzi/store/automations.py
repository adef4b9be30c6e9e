"""Automations as they stand: handlers with their scheduling state, what is pending for whom, the live run, and what
blocks one. Reads alone; how a schedule is said in words is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.automation_pb2 import Automation, AutomationStatus, BlockedCode, HandlerDefinition
from kagzi.protocol.v1.schedule_pb2 import ScheduleTiming
from kagzi.store import errors, ledger, namespaces, rows
from kagzi.store.choice import KIND, PHASE, TRIGGER
from kagzi.store.queries import Queries
from kagzi.store.tasks import phase

_sql = Queries("automations.sql")
_list = _sql.bind(
    "list",
    columns=(
        "name",
        "definition_hash",
        "task_queue",
        "paused_at",
        "blocked_code",
        "blocked_message",
        "blocked_handler",
        "blocked_run_id",
        "blocked_mutation_id",
        "blocked_at",
        "last_request",
        "created_at",
        "deployed_at",
        "run_id",
        "handler",
        "status",
        "trigger",
        "kind",
        "run_created_at",
        "prepared",
        "prepared_title",
        "mutation_status",
        "emitting",
        "next_at",
        "pending",
    ),
)
_handlers = _sql.bind(
    "handlers",
    columns=(
        "name",
        "kind",
        "publishes",
        "subscribes",
        "mutates",
        "schedule_type",
        "schedule_value",
        "timezone",
        "anchor_at",
        "next_run_at",
        "last_run_at",
        "queued",
        "wake_at",
        "dirty",
        "failures",
        "not_before",
        "state",
        "state_encoding",
        "last_run_id",
        "last_failure",
    ),
)
_backlog = _sql.bind("backlog", columns=("topic", "consumer", "pending", "oldest_at", "reserved"))
_topics = _sql.bind("topics", columns=("topic",))

STATUS = {name.removeprefix("AUTOMATION_"): value for name, value in AutomationStatus.items() if value}
STATUS_NAME = {value: name for name, value in STATUS.items()}
CODE = {name.removeprefix("BLOCKED_"): value for name, value in BlockedCode.items() if value}


# What is pending is counted up to this.
COUNT_TO = 10_000


async def get(
    connection: Connection, namespace: str, name: str, state_of: str = "", count_to: int = COUNT_TO
) -> Automation:
    """One automation with its handlers and what is left to do."""
    row = await _list.first(
        connection, namespace=namespace, after="", name=name, statuses=None, count=1, count_to=count_to
    )
    if row is None:
        await require(connection, namespace, name)
    assert row is not None
    found = (await _messages(connection, namespace, [row], whole=True))[0]
    for handler in await _handlers.fetch(connection, namespace=namespace, name=name, state_of=state_of):
        found.handlers.append(_handler(handler))
    if state_of and all(handler.definition.name != state_of for handler in found.handlers):
        raise errors.not_found(f"handler of {name!r} called", state_of, "state_of")
    left = await _backlog.fetch(
        connection, namespace=namespace, name=name, count_to=count_to, shared=count_to < COUNT_TO
    )
    for entry in left:
        found.backlog.append(
            Automation.Backlog(
                topic=entry["topic"],
                consumer=entry["consumer"],
                pending=entry["pending"],
                reserved=entry["reserved"],
                oldest_at=rows.timestamp(entry["oldest_at"]),
            )
        )
    return found


async def list_(
    connection: Connection,
    namespace: str,
    *,
    count: int,
    after: str,
    statuses: Sequence[str] | None,
    count_to: int = COUNT_TO,
) -> list[Automation]:
    """Automations by name, without handlers and backlog."""
    given = {"after": after, "name": None, "statuses": statuses, "count": count, "count_to": count_to}
    found = await _list.fetch(connection, namespace=namespace, **given)
    return await _messages(connection, namespace, found, whole=False)


async def topics(connection: Connection, namespace: str, name: str) -> set[str]:
    """Every topic that an automation knows."""
    return {row["topic"] for row in await _topics.fetch(connection, namespace=namespace, name=name)}


async def require(connection: Connection, namespace: str, name: str) -> None:
    """Refuses, naming what does not exist."""
    found = await _list.first(connection, namespace=namespace, after="", name=name, statuses=None, count=1, count_to=0)
    if found is None:
        await namespaces.get(connection, namespace)
        raise errors.not_found("automation", name, "name")


async def _messages(
    connection: Connection, namespace: str, found: Sequence[Record], *, whole: bool
) -> list[Automation]:
    doubtful = [str(row["blocked_mutation_id"]) for row in found if row["blocked_mutation_id"]]
    held = await ledger.by_id(connection, namespace, doubtful, whole=whole) if doubtful else {}
    return [_automation(namespace, row, held.get(str(row["blocked_mutation_id"]))) for row in found]


def _automation(namespace: str, row: Record, mutation: Record | None) -> Automation:
    stands = "BLOCKED" if row["blocked_code"] else "PAUSED" if row["paused_at"] else "ACTIVE"
    return Automation(
        namespace=namespace,
        name=row["name"],
        status=STATUS[stands],
        paused_at=rows.timestamp(row["paused_at"]),
        blocked=_blocked(row, mutation),
        live_run=_live_run(row),
        next_at=rows.timestamp(row["next_at"]) if stands == "ACTIVE" else None,
        definition_hash=row["definition_hash"],
        task_queue=row["task_queue"],
        pending=row["pending"],
        created_at=rows.timestamp(row["created_at"]),
        deployed_at=rows.timestamp(row["deployed_at"]),
    )


def _blocked(row: Record, mutation: Record | None) -> Automation.Blocked | None:
    if row["blocked_code"] is None:
        return None
    return Automation.Blocked(
        code=CODE[row["blocked_code"]],
        message=row["blocked_message"],
        handler=row["blocked_handler"],
        run_id=rows.identity(row["blocked_run_id"]),
        mutation=None if mutation is None else ledger.message_of(mutation),
        since=rows.timestamp(row["blocked_at"]),
    )


def _live_run(row: Record) -> Automation.LiveRun | None:
    if row["run_id"] is None:
        return None
    live = Automation.LiveRun(
        run_id=str(row["run_id"]),
        handler=row["handler"],
        status=rows.RUN_STATUS[row["status"]],
        trigger=TRIGGER[row["trigger"]],
        title=row["prepared_title"] or "",
        created_at=rows.timestamp(row["run_created_at"]),
    )
    if row["kind"] == "CONSUMER":
        live.phase = PHASE[phase(row["prepared"], row["mutation_status"], emitting=row["emitting"])]
    return live


def _handler(row: Record) -> Automation.Handler:
    definition = HandlerDefinition(
        name=row["name"],
        kind=KIND[row["kind"]],
        timing=_timing(row),
        timezone=row["timezone"] or "",
        publishes=row["publishes"],
        subscribes=row["subscribes"],
        mutates=row["mutates"],
    )
    return Automation.Handler(
        definition=definition,
        next_run_at=rows.timestamp(row["next_run_at"]),
        last_run_at=rows.timestamp(row["last_run_at"]) if row["kind"] == "PRODUCER" else None,
        queued=row["queued"],
        wake_at=rows.timestamp(row["wake_at"]),
        dirty=row["dirty"],
        failures=row["failures"],
        not_before=rows.timestamp(row["not_before"]),
        state=rows.payload(row["state"], row["state_encoding"]),
        last_run_id=rows.identity(row["last_run_id"]),
        last_failure=rows.failure(row["last_failure"]),
    )


def _timing(row: Record) -> ScheduleTiming | None:
    match row["schedule_type"]:
        case "cron":
            return ScheduleTiming(cron=row["schedule_value"])
        case "interval":
            return ScheduleTiming(every_ms=int(row["schedule_value"]))
    return None
