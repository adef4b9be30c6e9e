"""What the statements of automations promise by themselves: events, deliveries and mutations that they may not touch
stay as they are. Beside `test_guards.py`, which has those of runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from asyncpg.connection import Connection

from tests.database import Databases
from tests.store import given
from tests.store.given import new_id
from tests.store.statements import look, run


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """One for all: what a test looks at is its own."""
    url = databases.create()
    yield url
    databases.drop(url)


async def automation(connection: Connection, **columns: Any) -> str:
    """An automation with a consumer `add` of the topic `mail`."""
    name = new_id()
    await connection.execute(
        "insert into kagzi.automations (namespace, name, definition_hash, task_queue, deployments)"
        " values ('default', $1, '1', 'q', '{}')",
        name,
    )
    await connection.execute(
        "insert into kagzi.handlers (namespace, automation, name, kind, subscribes)"
        " values ('default', $1, 'add', 'CONSUMER', '{mail}')",
        name,
    )
    return name


async def delivery(connection: Connection, name: str, status: str, run_id: str | None = None) -> str:
    event_id = new_id()
    await connection.execute(
        "insert into kagzi.deliveries (namespace, automation, consumer, topic, event_id, status, run_id, arrival,"
        " published_at) values ('default', $1, 'add', 'mail', $2, $3, $4, 1, kagzi.now())",
        name,
        event_id,
        status,
        run_id,
    )
    return event_id


async def mutation(connection: Connection, name: str, status: str = "IN_FLIGHT", **columns: Any) -> str:
    mutation_id = new_id()
    run_id = columns.get("run_id") or new_id()
    await connection.execute(
        "insert into kagzi.mutations (namespace, mutation_id, automation, handler, run_id, holder_id, attempt_id,"
        " claim_token, tool, idempotency_key, status, has_reconciler, finished_at)"
        " values ('default', $1, $2, 'add', $3, $3, $4, $4, 't', 'k', $5, false,"
        " case when $5 in ('IN_FLIGHT', 'INDETERMINATE') then null else kagzi.now() end)",
        mutation_id,
        name,
        run_id,
        columns.get("attempt_id") or new_id(),
        status,
    )
    return mutation_id


def settled(run_id: str, name: str) -> dict[str, dict[str, Any]]:
    one = {"run_id": run_id, "ending": "PENDING", "releases": True, "name": name}
    many = {"run_ids": [run_id], "automations": [name], "handlers": ["add"]}
    ended = {"producers": [False], "reserving": [True], "changed": [False], "states": [None], "encodings": [None]}
    return {
        "answers.settle": {**one, "continues": False},
        "settlement.drop": one,
        "settlement.settle": {
            **many,
            "releases": [True],
            "continues": [False],
            "endings": ["PENDING"],
            "pauses": [None],
            "errors": ["{}"],
        },
        "commits.commit": {
            **many,
            **ended,
            "endings": ["SKIPPED"],
            "next_run_ats": [None],
            "tokens": [new_id()],
            "operation_ids": [new_id()],
        },
    }


@pytest.mark.parametrize("called", settled("", ""))
async def test_only_what_is_reserved_is_settled(connection: Connection, called: str) -> None:
    name, run_id = await automation(connection), new_id()
    consumed = await delivery(connection, name, "CONSUMED", run_id)
    reserved = await delivery(connection, name, "RESERVED", run_id)
    await run(connection, called, **settled(run_id, name)[called])
    assert (await look(connection, "deliveries", "event_id", consumed))["status"] == "CONSUMED"
    assert (await look(connection, "deliveries", "event_id", reserved))["status"] in ("PENDING", "SKIPPED")


async def test_only_the_current_token_commits(connection: Connection) -> None:
    name, run_id = await automation(connection), await given.run(connection, "RUNNING")
    values = settled(run_id, name)["commits.commit"]
    assert await run(connection, "commits.commit", **values) == []
    token = (await look(connection, "workflow_runs", "run_id", run_id))["claim_token"]
    assert len(await run(connection, "commits.commit", **values | {"tokens": [token]})) == 1


async def test_only_what_is_pending_is_reserved(connection: Connection) -> None:
    name, mine, other = await automation(connection), new_id(), new_id()
    taken = await delivery(connection, name, "RESERVED", other)
    pending = await delivery(connection, name, "PENDING")
    decided: dict[str, Any] = {"run_ids": [mine], "automations": [name], "consumers": ["add"], "reserved": ["[]"]}
    decided |= {"datas": [None], "encodings": [None], "titles": [None], "uis": [None], "wake_ats": [None]}
    decided |= {"wake_min": None, "wake_max": None}

    async def reserve(*wanted: str) -> int:
        count = len(wanted)
        events = {"wanted_run_ids": [mine] * count, "wanted_automations": [name] * count, "wanted_ids": [*wanted]}
        topics = {"wanted_consumers": ["add"] * count, "wanted_topics": ["mail"] * count}
        return len(await run(connection, "preparations.prepare", **decided, **events, **topics))

    assert await reserve(taken, pending) == 0
    assert str((await look(connection, "deliveries", "event_id", taken))["run_id"]) == other
    assert await reserve(pending) == 1
    assert str((await look(connection, "deliveries", "event_id", pending))["run_id"]) == mine


def published(name: str, event_id: str, run_id: str | None = None, input_id: str | None = None) -> dict[str, Any]:
    said = {"automations": [name], "topics": ["mail"], "event_ids": [event_id], "payloads": [None]}
    return {**said, "encodings": [None], "run_ids": [run_id], "input_ids": [input_id]}


async def test_an_event_is_delivered_and_caused_once_however_often_it_is_published(connection: Connection) -> None:
    name, input_id = await automation(connection), new_id()
    known = await delivery(connection, name, "SKIPPED")
    for _ in range(2):
        await run(connection, "publications.publish", **published(name, known, input_id=input_id))
    assert (await look(connection, "deliveries", "event_id", known))["status"] == "SKIPPED"
    assert (await look(connection, "event_causes", "event_id", known))["input_id"] is not None


async def test_what_a_consumer_publishes_comes_from_what_it_has_reserved(connection: Connection) -> None:
    name, run_id = await automation(connection), new_id()
    reserved, consumed = new_id(), new_id()
    for status, input_id in (("RESERVED", reserved), ("CONSUMED", consumed)):
        event_id = await delivery(connection, name, status, run_id)
        await run(connection, "publications.publish", **published(name, event_id, input_id=input_id))
    await run(connection, "publications.publish", **published(name, "out", run_id=run_id))
    rows = await connection.fetch(
        "select input_id from kagzi.event_causes where automation = $1 and event_id = 'out'", name
    )
    assert [str(row["input_id"]) for row in rows] == [reserved]


async def test_only_a_mutation_that_is_in_flight_is_given_up(connection: Connection) -> None:
    name = await automation(connection)
    applied, flying = await mutation(connection, name, "APPLIED"), await mutation(connection, name)
    # One that is given up has no end, which the table says of every other.
    await run(connection, "settlement.give_up", mutation_ids=[applied, flying])
    assert (await look(connection, "mutations", "mutation_id", applied))["status"] == "APPLIED"
    assert (await look(connection, "mutations", "mutation_id", flying))["status"] == "INDETERMINATE"


async def test_a_run_has_one_mutation(connection: Connection) -> None:
    name, run_id = await automation(connection), new_id()
    begun = {"automations": [name], "handlers": ["add"], "run_ids": [run_id], "attempt_ids": [new_id()]}
    begun |= {"claim_tokens": [new_id()], "tools": ["t"], "idempotency_keys": ["k"], "titles": [""]}
    values: dict[str, Any] = {**begun, "parameters": [None], "encodings": [None], "has_reconciler": [False]}
    assert len(await run(connection, "mutations.begin", mutation_ids=[new_id()], **values)) == 1
    assert await run(connection, "mutations.begin", mutation_ids=[new_id()], **values) == []


async def test_only_the_attempt_that_called_the_tool_and_was_cut_off_is_interrupted(connection: Connection) -> None:
    name, run_id = await automation(connection), await given.run(connection, "RUNNING")
    other = await given.step(connection, run_id, "other", status="RUNNING")
    called = await given.step(connection, run_id, "called", status="RUNNING", position=2)
    mutation_id = await mutation(connection, name, run_id=run_id, attempt_id=called)
    await run(connection, "mutations.interrupt", mutation_ids=[mutation_id])
    assert (await look(connection, "step_runs", "attempt_id", other))["status"] == "RUNNING"
    assert (await look(connection, "step_runs", "attempt_id", called))["status"] == "INTERRUPTED"
    await connection.execute("update kagzi.step_runs set status = 'FAILED' where attempt_id = $1", called)
    await run(connection, "mutations.interrupt", mutation_ids=[mutation_id])
    assert (await look(connection, "step_runs", "attempt_id", called))["status"] == "FAILED"


async def test_the_first_reason_of_a_block_stands(connection: Connection) -> None:
    name = await automation(connection)
    for code in ("DEFECT", "POISONED"):
        blocked = {"names": [name], "codes": [code], "messages": ["m"], "handlers": ["add"]}
        await run(connection, "blocks.block", **blocked, run_ids=[new_id()], mutation_ids=[None])
    assert (await look(connection, "automations", "name", name))["blocked_code"] == "DEFECT"


def chosen(name: str, continues: str | None = None) -> dict[str, Any]:
    one: dict[str, Any] = {"run_ids": [new_id()], "task_queues": ["q"], "automations": [name], "handlers": ["add"]}
    one |= {"triggers": ["event"], "continues": [continues], "definition_hashes": ["1"], "seeds": [1]}
    return {**one, "tokens": [None], "worker_ids": [None], "lease": None}


async def test_an_automation_has_one_live_run(connection: Connection) -> None:
    name = await automation(connection)
    assert len(await run(connection, "choice.start", **chosen(name))) == 1
    assert await run(connection, "choice.start", **chosen(name)) == []


async def test_a_continuation_takes_over_what_is_reserved_and_nothing_else(connection: Connection) -> None:
    name, ended = await automation(connection), new_id()
    consumed = await delivery(connection, name, "CONSUMED", ended)
    reserved = await delivery(connection, name, "RESERVED", ended)
    [row] = await run(connection, "choice.start", **chosen(name, ended))
    assert str((await look(connection, "deliveries", "event_id", consumed))["run_id"]) == ended
    assert (await look(connection, "deliveries", "event_id", reserved))["run_id"] == row["run_id"]


@pytest.mark.parametrize(("status", "waits"), [("INDETERMINATE", True), ("APPLIED", False), ("IN_FLIGHT", False)])
async def test_a_run_is_parked_while_nobody_can_say_what_became_of_its_mutation(
    connection: Connection, status: str, waits: bool
) -> None:
    name = await automation(connection)
    run_id = await given.run(connection, "RUNNING", automation=name, handler="add")
    await mutation(connection, name, status, run_id=run_id)
    token = (await look(connection, "workflow_runs", "run_id", run_id))["claim_token"]
    parked = {"parked": ["{}"], "parked_hashes": ["x"], "named": [0], "kept": [False]}
    given_away = {"run_ids": [run_id], "tokens": [token], "operation_ids": [new_id()]}
    await run(connection, "suspensions.suspend", **given_away, **parked, wait_run_ids=[], wait_step_ids=[])
    assert ((await given.seen(connection, run_id))["lease_s"] is None) == waits
