"""The client against a real server: starting runs, waiting for them, looking at them and changing them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.workflow_pb2 import StartWorkflowRequest
from kagzi.sdk import request
from kagzi.sdk.client import Client
from kagzi.sdk.codec import Chain, Codec, Compression
from kagzi.sdk.context import Context
from kagzi.sdk.current import CurrentStep, current_step, idempotency_key
from kagzi.sdk.definition import workflow
from kagzi.sdk.encryption import Encryption
from kagzi.sdk.errors import (
    ConfigError,
    Conflict,
    InvalidArgument,
    NotFound,
    PayloadError,
    PreconditionFailed,
    RunCancelled,
    RunFailed,
    Unavailable,
)
from kagzi.sdk.retry import Retry
from kagzi.server.app import Server
from tests.sdk.serving import (
    Hand,
    completed,
    echo,
    failed,
    new_id,
    serving,
    step,
    step_failed,
    waits_for,
    working,
)
from tests.survival.load import until_async


@dataclass(frozen=True)
class Order:
    card: str
    cents: int


@dataclass(frozen=True)
class Receipt:
    number: int


@workflow(queue="till", version="2", retry=Retry(max_attempts=7), timeout="1h")
async def buy(ctx: Context, order: Order) -> Receipt:
    return Receipt(order.cents)


@workflow
async def tick(ctx: Context) -> None: ...


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    async with serving(database_url) as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with Client(server.address) as made:
        yield made


@pytest.fixture
async def hand(server: Server) -> AsyncIterator[Hand]:
    plays = {"echo": echo, "bad": lambda _: [failed("out of stock")], "waits": lambda _: waits_for("go")}
    async with working(server.address, "held", **plays) as worker:
        yield worker


def a_request(workflow: Any = "order", input: Any = None, **options: Any) -> StartWorkflowRequest:
    return request.start("default", Chain(), workflow, input, **options)


async def test_a_run_is_started_and_gives_its_result(client: Client, hand: Hand) -> None:
    assert await client.execute("echo", {"a": [1, None]}) == {"a": [1, None]}
    handle = await client.start("echo", "x")
    assert await handle.result() == "x"
    assert await handle.result(timeout="10s") == "x"


async def test_results_come_back_as_the_workflow_declares(client: Client, server: Server) -> None:
    async with working(server.address, buy=lambda _: [completed({"number": 7})]):
        handle = await client.start(buy, Order("4711", 500), queue="default", version=None, timeout="1m")
        with pytest.raises(TimeoutError):
            # The declared version is served by nobody here.
            await handle.result(timeout=0.05)
    async with working(server.address, buy=lambda _: [completed({"number": 7})]):
        other = await client.start("buy", {"card": "4711", "cents": 1})
        assert await client.handle(other.run_id, buy).result() == Receipt(7)
        assert await client.handle(other.run_id).result() == {"number": 7}


def test_a_start_says_what_the_workflow_declares() -> None:
    made = a_request(buy, Order("4711", 500))
    assert (made.workflow_type, made.task_queue, made.version) == ("buy", "till", "2")
    assert (made.retry.maximum_attempts, made.timeout_ms, made.priority) == (7, 3_600_000, 2)
    assert made.input.data == b'{"card":"4711","cents":500}'


def test_what_the_caller_says_goes_before_what_the_workflow_declares() -> None:
    at = datetime(2030, 1, 2, tzinfo=UTC)
    made = a_request(
        buy,
        Order("1", 1),
        id="order-1",
        queue="fast",
        at=at,
        priority=4,
        labels={"customer": "7"},
        timeout="2h",
        retry=Retry(max_attempts=2),
        on_conflict="replace",
        dedupe="forever",
        version="3",
        detached=True,
        run_id="0190a0a0-0000-7000-8000-000000000001",
    )
    assert (made.external_id, made.task_queue, made.version) == ("order-1", "fast", "3")
    assert made.start_at.ToDatetime(UTC) == at
    assert (made.priority, dict(made.labels), made.timeout_ms) == (4, {"customer": "7"}, 7_200_000)
    assert (made.retry.maximum_attempts, made.detached) == (2, True)
    assert made.run_id == "0190a0a0-0000-7000-8000-000000000001"
    assert a_request(delay="90s").delay_ms == 90_000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delay": 1, "at": datetime(2030, 1, 1, tzinfo=UTC)}, "not both"),
        ({"at": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001 - that is the mistake
        ({"on_conflict": "ignore"}, "'replace'"),
        ({"dedupe": "never"}, "'forever'"),
        ({"delay": -1}, "negative"),
        ({"at": "tomorrow"}, "at='tomorrow' must be a datetime"),
        ({"labels": {"a": 1}}, r"labels\['a'\]"),
        ({"labels": 5}, "labels=5"),
        ({"priority": "high"}, "priority='high'"),
        ({"priority": True}, "priority=True"),
        ({"retry": 3}, "retry=3 must be a Retry"),
        ({"id": 42}, "id must be"),
        ({"queue": 42}, "queue must be"),
        ({"version": 42}, "version must be"),
        ({"id": ""}, "id must be 1 to 255 bytes"),
        ({"queue": ""}, "queue must be 1 to 255 bytes"),
        ({"delay": "soon"}, "delay='soon' is not a duration"),
        ({"timeout": "soon"}, "timeout='soon' is not a duration"),
    ],
)
def test_a_mistake_in_the_options_is_told_before_anything_is_sent(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        a_request(**options)


def test_an_option_that_does_not_exist_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="prio"):
        a_request(prio=3)


def test_a_workflow_without_input_takes_none() -> None:
    assert not a_request(tick).HasField("input")
    with pytest.raises(ConfigError, match="takes no input"):
        a_request(tick, 3)


def test_a_workflow_with_input_says_that_it_needs_one() -> None:
    with pytest.raises(ConfigError, match="Workflow 'buy' takes an input of type Order, and was given none"):
        a_request(buy)


async def test_what_is_no_name_is_refused_before_anything_is_sent() -> None:
    handle = Client("localhost:1").handle("0190a0a0-0000-7000-8000-000000000001")
    unknown: Any = 5
    for call, field in (
        (handle.signal(unknown), "name"),
        (handle.resolve(unknown, "fail"), "step"),
        (handle.resolve("charge", "fail", reason=unknown), "reason"),
        (handle.resolve("charge", "fail", attempt_id=unknown), "attempt_id"),
        (handle.cancel(unknown), "reason"),
        (handle.terminate(unknown), "reason"),
        (handle.fork("charge", outputs={unknown: 1}), "a step of outputs"),
    ):
        with pytest.raises(ConfigError, match=f"{field} must be text, got 5"):
            await call


async def test_what_is_no_value_of_an_argument_is_refused_before_anything_is_sent() -> None:
    client = Client("localhost:1")
    handle = client.handle("0190a0a0-0000-7000-8000-000000000001")
    unknown: Any = [1]
    for call, words in (
        (handle.fork("charge", outputs=unknown), r"outputs=\[1\] must be a mapping of steps to values"),
        (handle.result(timeout="soon"), "timeout='soon' is not a duration"),
        (client.find(""), "id must be 1 to 255 bytes"),
        (client.find(unknown), "id must be 1 to 255 bytes"),
        (anext(aiter(client.runs(limit=unknown))), r"limit=\[1\] must be a whole number"),
    ):
        with pytest.raises(ConfigError, match=words):
            await call
    with pytest.raises(ConfigError, match="patience='soon' is not a duration"):
        Client("localhost:1", patience="soon")


def test_a_name_that_is_too_long_is_not_shown_whole() -> None:
    with pytest.raises(ConfigError, match="id must be 1 to 255 bytes") as caught:
        a_request(id="x" * 10_000)
    assert len(str(caught.value)) < 200


def test_an_input_of_another_type_is_refused_where_it_is_given() -> None:
    with pytest.raises(PayloadError, match="Order"):
        a_request(buy, "no order")


async def test_a_failed_run_raises_what_left_the_workflow(client: Client, hand: Hand) -> None:
    handle = await client.start("bad")
    with pytest.raises(RunFailed, match="out of stock") as raised:
        await handle.result()
    assert (raised.value.run_id, raised.value.type, raised.value.message) == (
        handle.run_id,
        "ValueError",
        "out of stock",
    )
    assert raised.value.traceback == "Traceback ..."


async def test_waiting_ends_after_the_timeout_and_the_run_goes_on(client: Client, hand: Hand) -> None:
    handle = await client.start("held")
    with pytest.raises(TimeoutError, match=r"200ms.*goes on"):
        await handle.result(timeout=0.2)
    await hand.end(handle.run_id, completed("later"))
    assert await handle.result() == "later"


async def test_a_run_that_was_never_claimed_is_cancelled_at_once(client: Client) -> None:
    handle = await client.start("nobody serves this")
    assert await handle.cancel("not wanted") == "CANCELLED"
    assert await handle.cancel() == "CANCELLED"
    with pytest.raises(RunCancelled, match="not wanted"):
        await handle.result()


async def test_a_held_run_is_asked_to_end_or_ended(client: Client, hand: Hand) -> None:
    handle = await client.start("held")
    await hand.holds(handle.run_id)
    assert await handle.cancel() == "RUNNING"
    assert (await handle.describe()).cancel_requested_at is not None
    assert await handle.terminate("why") == "CANCELLED"
    with pytest.raises(RunCancelled, match="why"):
        await handle.result()


async def test_an_id_names_one_active_run(client: Client) -> None:
    first = await client.start("order", id="order-42")
    second = await client.start("order", id="order-42")
    assert (first.run_id, first.already_exists) == (second.run_id, False)
    assert second.already_exists
    with pytest.raises(Conflict, match="order-42"):
        await client.start("order", id="order-42", on_conflict="reject")
    third = await client.start("order", id="order-42", on_conflict="replace")
    assert third.run_id != first.run_id
    assert (await first.describe()).status == "CANCELLED"
    assert (await client.find("order-42")).run_id == third.run_id


async def test_starting_twice_with_one_run_id_is_one_run(client: Client) -> None:
    run_id = new_id()
    handles = [await client.start("order", i, run_id=run_id) for i in range(2)]
    assert [handle.run_id for handle in handles] == [run_id, run_id]
    assert (await handles[1].describe()).input == 0


async def test_a_run_is_asked_why_it_does_not_move(client: Client) -> None:
    handle = await client.start("nobody-knows-it", queue="empty")
    told = await handle.explain()
    assert (told.status, told.summary) == ("PENDING", "No worker serves the queue empty.")
    [reason] = told.reasons
    assert (reason.code, reason.subject, reason.until) == ("NO_WORKER", "empty", None)
    assert reason.suggestion
    assert reason.since is not None


async def test_a_description_says_how_the_run_is(client: Client, hand: Hand) -> None:
    began = datetime.now(UTC) - timedelta(seconds=5)
    handle = await client.start("echo", {"a": 1}, id="x", labels={"customer": "7"}, priority=3)
    await handle.result()
    run = await handle.describe()
    assert (run.run_id, run.id, run.type, run.queue, run.namespace) == (
        handle.run_id,
        "x",
        "echo",
        "default",
        "default",
    )
    assert (run.status, run.status.ended, run.priority, run.labels) == ("COMPLETED", True, 3, {"customer": "7"})
    assert (run.input, run.output, run.error, run.state) == ({"a": 1}, {"a": 1}, None, None)
    assert run.started_at is not None
    assert run.finished_at is not None
    assert began < run.created_at <= run.started_at <= run.finished_at
    assert run.available_at is None


async def test_the_steps_of_a_run_are_listed_in_order(client: Client, server: Server) -> None:
    bodies = [*(step(f"s{i}", i, i) for i in range(1, 151)), step_failed("last", 151), failed(step="last")]
    async with working(server.address, many=lambda _: bodies):
        handle = await client.start("many")
        with pytest.raises(RunFailed):
            await handle.result()
    steps = await handle.steps()
    assert [one.output for one in steps] == [*range(1, 151), None]
    assert (steps[0].step_id, steps[0].kind, steps[0].status, steps[0].attempt) == ("s1", "FUNCTION", "COMPLETED", 1)
    assert (steps[-1].status, str(steps[-1].error)) == ("FAILED", "ValueError: last failed")


async def test_the_published_state_is_read(client: Client, hand: Hand) -> None:
    handle = await client.start("held")
    assert await handle.state() is None
    published = pb.SetState(state_json='{"phase": "shipped"}', number=1)
    await hand.end(handle.run_id, ("set_state", published), completed())
    await handle.result()
    assert await handle.state() == {"phase": "shipped"}


async def test_a_signal_wakes_the_run_that_waits_for_it(client: Client, hand: Hand) -> None:
    handle = await client.start("waits")

    async def sleeps() -> bool:
        return (await handle.describe()).status == "SLEEPING"

    await until_async(sleeps)
    await handle.signal("other", 1)
    hand.plays["waits"] = lambda run: [completed([fact.signal.payload.data.decode() for fact in run.facts])]
    await handle.signal("go", Order("4711", 5))
    first, second = await handle.result()
    assert first == "1"
    assert '"card":"4711"' in second


async def test_a_signal_with_one_id_is_one_signal(client: Client, database_url: str) -> None:
    handle = await client.start("nobody serves this")
    for _ in range(2):
        await handle.signal("go", 1, id="0190a0a0-0000-7000-8000-000000000009")
    await handle.signal("go", 1)
    connection = await asyncpg.connect(database_url)
    assert await connection.fetchval("select count(*) from kagzi.signals") == 2
    await connection.close()


async def test_an_ended_run_receives_no_signals(client: Client, hand: Hand) -> None:
    handle = await client.start("echo")
    await handle.result()
    with pytest.raises(PreconditionFailed):
        await handle.signal("go")


async def test_a_failed_run_is_retried_from_the_failed_step(client: Client, server: Server) -> None:
    bodies = [step("reserve", 1, "r"), step_failed("charge", 2), failed(step="charge")]
    async with working(server.address, order=lambda run: [completed("ok")] if run.history else bodies) as hand:
        handle = await client.start("order", {"a": 1}, id="order-1")
        with pytest.raises(RunFailed):
            await handle.result()
        again = await handle.retry()
        assert again.run_id != handle.run_id
        assert await again.result() == "ok"
    assert [one.step_id for one in hand.delivered[-1].history] == ["reserve"]
    assert hand.delivered[-1].seed == hand.delivered[0].seed
    run = await again.describe()
    assert (run.retried_from, run.id, run.input) == (handle.run_id, "order-1", {"a": 1})
    with pytest.raises(PreconditionFailed, match="COMPLETED"):
        await again.retry()


async def test_a_run_is_forked_with_other_outputs_and_input(client: Client, server: Server) -> None:
    bodies = [step("reserve", 1, "r"), step("charge", 2, "c"), completed("first")]
    async with working(server.address, order=lambda run: [completed("second")] if run.history else bodies) as hand:
        handle = await client.start("order", 1)
        assert await handle.result() == "first"
        other = await handle.fork("charge", outputs={"reserve": Order("x", 1)}, input=2)
        assert await other.result() == "second"
    [kept] = hand.delivered[-1].history
    assert kept.step_id == "reserve"
    assert b'"card":"x"' in kept.output.data
    assert hand.delivered[-1].input.data == b"2"
    with pytest.raises(NotFound, match="nobody"):
        await handle.fork("nobody")
    with pytest.raises(InvalidArgument, match="outputs"):
        await handle.fork("charge", outputs={"charge": 1})


async def test_runs_are_listed_newest_first_by_what_is_asked(client: Client, hand: Hand) -> None:
    for index in range(3):
        await client.execute("echo", index, labels={"number": str(index % 2)})
    with pytest.raises(RunFailed):
        await client.execute("bad")
    await client.start("nobody serves this", queue="other")
    assert [run.type async for run in client.runs()] == ["nobody serves this", "bad", "echo", "echo", "echo"]
    assert [run.type async for run in client.runs(status="FAILED")] == ["bad"]
    assert [run.type async for run in client.runs(status=["FAILED", "PENDING"])] == ["nobody serves this", "bad"]
    assert len([run async for run in client.runs(type="echo", labels={"number": "0"})]) == 2
    assert [run.queue async for run in client.runs(queue="other")] == ["other"]
    assert len([run async for run in client.runs(since="1h")]) == 5
    assert [run async for run in client.runs(until="1h")] == []
    assert [run async for run in client.runs(type=buy)] == []


async def test_lists_are_read_page_by_page_and_end_at_the_limit(client: Client) -> None:
    await asyncio.gather(*(client.start("order", i) for i in range(230)))
    assert len([run async for run in client.runs()]) == 230
    assert len([run async for run in client.runs(limit=205)]) == 205
    assert len([run async for run in client.runs(limit=3)]) == 3
    assert [run async for run in client.runs(limit=0)] == []


async def test_a_filter_without_meaning_is_refused(client: Client) -> None:
    with pytest.raises(ConfigError, match="LOST"):
        await anext(aiter(client.runs(status="LOST")))
    with pytest.raises(ConfigError, match="time zone"):
        await anext(aiter(client.runs(since=datetime(2030, 1, 1))))  # noqa: DTZ001 - that is the mistake
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"status": 5}, "status=5 must be one of"),
        ({"status": [5]}, "status=5 must be one of"),
        ({"type": 5}, "or by its name, and not as int 5"),
        ({"type": ""}, "workflow must be"),
        ({"queue": ""}, "queue must be"),
        ({"labels": 5}, "labels=5 must be a mapping"),
        ({"labels": {"a": 5}}, r"labels\['a'\]"),
        ({"parent": 5}, "parent must be text"),
        ({"since": "soon"}, "since='soon' is not a duration"),
        ({"until": []}, "until=\\[\\] is not a duration"),
    ]
    for filters, words in wrong:
        with pytest.raises(ConfigError, match=words):
            await anext(aiter(client.runs(**filters)))


async def test_what_does_not_exist_is_not_found(client: Client) -> None:
    handle = client.handle(new_id())
    for ask in (handle.describe, handle.result, handle.cancel, handle.retry, handle.steps):
        with pytest.raises(NotFound, match=handle.run_id):
            await ask()
    with pytest.raises(NotFound, match="order-1"):
        await client.find("order-1")


def test_a_handle_needs_a_run_id() -> None:
    with pytest.raises(ConfigError, match=r"client\.find"):
        Client().handle("order-42")


async def test_payloads_travel_through_the_codecs(server: Server, database_url: str) -> None:
    codecs: list[Codec] = [Compression(min_size=1), Encryption({"1": b"k" * 32}, current="1")]
    async with working(server.address, "waits", echo=echo), Client(server.address, codecs=codecs) as client:
        handle = await client.start("echo", "secret" * 100)
        # An output is bound to another role than an input: what only echoes cannot be read as one.
        with pytest.raises(PayloadError):
            await handle.result()
        run = await client.handle(handle.run_id).describe()
        assert run.input == "secret" * 100
    async with Client(server.address) as other:
        with pytest.raises(PayloadError, match="codecs"):
            _ = (await other.handle(handle.run_id).describe()).input


async def test_everything_stays_in_its_namespace(client: Client, server: Server) -> None:
    handle = await client.start("order")
    async with Client(server.address, namespace="nowhere") as other:
        with pytest.raises(NotFound, match="nowhere"):
            await other.start("order")
        with pytest.raises(NotFound):
            await other.handle(handle.run_id).describe()
        with pytest.raises(NotFound):
            await other.handle(handle.run_id).result()


async def test_without_a_server_a_look_says_so_within_seconds() -> None:
    began = time.monotonic()
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1.*kagzi dev.*KAGZI_URL"):
            await client.handle(new_id()).describe()
    assert time.monotonic() - began < 30


async def test_without_a_server_a_change_is_given_up_when_patience_is_over() -> None:
    async with Client("127.0.0.1:1,127.0.0.1:2", patience=0.3) as client:
        handle = client.handle(new_id())
        for ask in (client.start("order"), handle.cancel(), handle.result(), handle.signal("go")):
            with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1, 127\.0\.0\.1:2"):
                await ask


async def test_a_closed_client_says_so(server: Server) -> None:
    client = Client(server.address)
    handle = await client.start("nobody serves this")
    waiting = asyncio.create_task(handle.result())
    await handle.describe()
    await client.close()
    with pytest.raises(Unavailable, match="closed"):
        await waiting
    with pytest.raises(Unavailable, match="closed"):
        await client.start("order")
    with pytest.raises(Unavailable, match="closed"):
        await handle.describe()


async def test_what_a_step_starts_is_its_child_and_started_once(client: Client) -> None:
    parent = await client.start("order")
    attempt = new_id()
    started = []
    for _ in range(2):
        current_step.set(CurrentStep("default", parent.run_id, 0, "ship", attempt, "key"))
        started.append([(await client.start("label", i)).run_id for i in range(2)])
    current_step.set(CurrentStep("default", parent.run_id, 1, "ship", attempt, "key"))
    anew = await client.start("label", 0)
    current_step.set(None)
    assert started[0] == started[1]
    assert len({*started[0], anew.run_id}) == 3
    run = await client.handle(started[0][0]).describe()
    assert (run.parent_run_id, run.root_run_id, run.input) == (parent.run_id, parent.run_id, 0)
    assert len([child async for child in client.runs(parent=parent.run_id)]) == 3
    await parent.terminate()
    assert (await client.handle(started[0][1]).describe()).status == "CANCELLED"


async def test_a_detached_start_outlives_the_run_around_it(client: Client) -> None:
    parent = await client.start("order")
    current_step.set(CurrentStep("default", parent.run_id, 0, "ship", new_id(), "key"))
    child = await client.start("label", detached=True)
    current_step.set(None)
    await parent.terminate()
    assert (await child.describe()).status == "PENDING"


def test_a_step_of_another_namespace_is_no_parent() -> None:
    token = current_step.set(CurrentStep("other", new_id(), 0, "ship", new_id(), "key"))
    made = a_request()
    current_step.reset(token)
    assert (made.parent_run_id, made.parent_step_attempt_id) == ("", "")


def test_the_idempotency_key_is_known_inside_a_step_alone() -> None:
    with pytest.raises(ConfigError, match=r"ctx\.step"):
        idempotency_key()
    token = current_step.set(CurrentStep("default", new_id(), 0, "ship", new_id(), "the key"))
    assert idempotency_key() == "the key"
    current_step.reset(token)


def test_a_client_says_where_it_looks() -> None:
    assert repr(Client("a:1,b:2", namespace="shop")) == "<Client of a:1, b:2, namespace 'shop'>"
