"""Steps: what can be one, how it is called, known and encoded, and what its errors look like to the workflow."""

import asyncio
import contextvars
import functools
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from kagzi import Context, Retry, RunFailed, StepFailed, errors, idempotency_key, step, workflow
from tests.sdk.rig import LONG, Gate, Rig, rigged


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with rigged(database_url) as rig:
        yield rig


@dataclass
class Sum:
    total: int


@dataclass
class Till:
    """An object that cannot be hashed."""

    base: int

    __hash__ = None  # type: ignore[assignment]

    async def add(self, number: int) -> Sum:
        return Sum(self.base + number)

    def add_here(self, number: int) -> Sum:
        return Sum(self.base + number)

    @step
    async def declared(self, number: int) -> Sum:
        return Sum(self.base + number)

    @classmethod
    def zero(cls, number: int) -> Sum:
        return Sum(number)

    @staticmethod
    async def alone(number: int) -> Sum:
        return Sum(number)


class Caller:
    def __init__(self, base: int) -> None:
        self.base = base

    async def __call__(self, number: int) -> Sum:
        return Sum(self.base + number)


class SyncCaller(Caller):
    def __call__(self, number: int) -> Sum:  # type: ignore[override]
        assert threading.current_thread() is not threading.main_thread()
        return Sum(self.base + number)


async def add(base: int, number: int) -> Sum:
    assert threading.current_thread() is threading.main_thread()
    return Sum(base + number)


def add_here(base: int, number: int) -> Sum:
    assert threading.current_thread() is not threading.main_thread()
    return Sum(base + number)


async def one_more(number: int) -> int:
    return number + 1


CALLABLES: dict[str, tuple[Any, Any]] = {
    "a coroutine function": (functools.partial(add, 1), Sum(6)),
    "a function": (functools.partial(add_here, 1), Sum(6)),
    "a partial of a partial": (functools.partial(functools.partial(add_here), base=1), Sum(6)),
    "a method that is a coroutine function": (Till(1).add, Sum(6)),
    "a method": (Till(1).add_here, Sum(6)),
    "a declared method": (Till(1).declared, Sum(6)),
    "a class method": (Till.zero, Sum(5)),
    "a static method": (Till.alone, Sum(5)),
    "an object that can be called": (SyncCaller(1), Sum(6)),
    "an object that makes coroutines": (Caller(1), Sum(6)),
    "a lambda": (lambda number: number + 1, 6),
    "a lambda that makes a coroutine": (lambda number: one_more(number + 0), 6),
}


@workflow
async def call(ctx: Context, which: str) -> bool:
    function, expected = CALLABLES[which]
    return bool(await ctx.step("call", function, number=5) == expected)


@pytest.mark.parametrize("which", CALLABLES)
async def test_a_step_can_be(rig: Rig, which: str) -> None:
    async with rig.working(call):
        assert await rig.execute(call, which)


@workflow
async def loop(ctx: Context) -> list[int]:
    first = [await ctx.step("charge", lambda number: number * 2, number) for number in range(3)]
    second = await asyncio.gather(*(ctx.step("charge", lambda number: number * 3, number) for number in range(3)))
    return first + second


async def test_repeated_names_are_counted(rig: Rig) -> None:
    async with rig.working(loop):
        handle = await rig.client.start(loop)
        assert await handle.result(timeout=LONG) == [0, 2, 4, 0, 3, 6]

    assert list(await rig.records(handle)) == ["charge", *(f"charge#{number}" for number in range(2, 7))]


def confusing(name: str, function: str, *, self: str) -> list[str]:
    return [name, function, self]


@workflow
async def keywords(ctx: Context) -> list[str]:
    return await ctx.step("odd", confusing, function="f", name="n", self="s")


async def test_keyword_arguments_may_have_any_name(rig: Rig) -> None:
    async with rig.working(keywords):
        assert await rig.execute(keywords) == ["n", "f", "s"]


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="outside")


@workflow
async def surroundings(ctx: Context) -> list[Any]:
    def read() -> list[str]:
        return [variable.get(), idempotency_key()]

    async def read_soon(_: str = "") -> list[str]:
        return [variable.get(), idempotency_key()]

    seen = [
        await ctx.step("thread", read),
        await ctx.step("loop", read_soon),
        await ctx.step("both", lambda: read_soon("both")),
    ]
    variable.set("from the workflow")
    return [*seen, await ctx.step("thread", read), await ctx.step("loop", read_soon), ctx.run_id]


async def test_context_variables_travel_into_bodies(rig: Rig) -> None:
    variable.set("from the worker")
    async with rig.working(surroundings):
        *bodies, run_id = await rig.execute(surroundings)

    assert bodies[:3] == [["from the worker", f"{run_id}/{name}"] for name in ("thread", "loop", "both")]
    assert bodies[3:] == [["from the workflow", f"{run_id}/{name}#2"] for name in ("thread", "loop")]


async def needs_two(first: int, second: int) -> int:
    return first + second


def needs_two_here(first: int, second: int) -> int:
    return first + second


@workflow(step_retry=Retry(max_attempts=1))
async def misfit(ctx: Context, sync: bool) -> str:
    function: Any = needs_two_here if sync else needs_two
    try:
        await ctx.step("misfit", function, 1)
    except StepFailed as error:
        return f"{error.type}: {error.message}"
    return "?"


@pytest.mark.parametrize("sync", [True, False])
async def test_arguments_that_do_not_fit_are_the_error_of_the_step(rig: Rig, sync: bool) -> None:
    async with rig.working(misfit):
        assert "missing 1 required positional argument: 'second'" in await rig.execute(misfit, sync)


def nothing_that_can_be_kept() -> object:
    return threading.Lock()


def too_much() -> str:
    return "x" * (2 * 1024 * 1024)


@workflow
async def unkept(ctx: Context, large: bool) -> list[Any]:
    try:
        await ctx.step("make", too_much if large else nothing_that_can_be_kept)
    except StepFailed as error:
        return [error.type, error.attempts, error.message]
    return []


@pytest.mark.parametrize(
    ("large", "message"), [(False, "lock"), (True, "too large for its step: at most 2097152 are stored")]
)
async def test_a_result_that_cannot_be_kept_fails_the_step_at_once(rig: Rig, large: bool, message: str) -> None:
    async with rig.working(unkept):
        kind, attempts, said = await rig.execute(unkept, large)

    assert (kind, attempts) == ("PayloadError", 1)
    assert message in said


@workflow
async def returns_too_much(ctx: Context) -> str:
    return too_much()


async def test_a_result_of_the_run_that_cannot_be_kept_fails_the_run(rig: Rig) -> None:
    async with rig.working(returns_too_much):
        with pytest.raises(RunFailed) as caught:
            await rig.execute(returns_too_much)

    assert caught.value.type == "PayloadError"


gate = Gate()


@pytest.fixture(autouse=True)
def new_gate() -> None:
    global gate  # noqa: PLW0603 - the bodies of a worker find it by name
    gate = Gate()


async def pause(who: Any = None) -> Any:
    return await gate.wait(who)


async def declined() -> None:
    cards: dict[str, str] = {}
    try:
        cards["card"]
    except KeyError as error:
        raise ValueError("declined \N{SNOWMAN}\0") from error


@workflow
async def catches(ctx: Context) -> dict[str, Any]:
    try:
        await ctx.step("charge", step(declined).with_options(retry=Retry(max_attempts=1)))
    except StepFailed as error:
        seen = {**vars(error), "text": str(error), "cause": repr(error.__cause__), "class": type(error).__name__}
        await ctx.step("pause", pause, seen)
        return seen
    return {}


async def test_a_caught_failure_is_the_same_live_and_in_replay(rig: Rig) -> None:
    async with rig.working(catches):
        handle = await rig.client.start(catches)
        live = await gate.arrival()
    gate.open()
    async with rig.working(catches):
        replayed = await handle.result(timeout=LONG)

    assert replayed == live
    assert live["step"] == "charge"
    assert (live["type"], live["attempts"], live["cause"]) == ("ValueError", 1, "None")
    assert live["message"].startswith("declined \N{SNOWMAN}")
    assert "KeyError: 'card'" in live["traceback"]
    assert live["text"].startswith("Step 'charge' failed after 1 attempt with ValueError: declined")


@workflow
async def grouped(ctx: Context) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.step("waits", asyncio.sleep, 3_600))
        group.create_task(ctx.step("fails", step(declined).with_options(retry=Retry(max_attempts=1))))


async def test_the_error_of_a_task_group_fails_the_run_and_stops_its_siblings(rig: Rig) -> None:
    async with rig.working(grouped):
        handle = await rig.client.start(grouped)
        with pytest.raises(RunFailed) as caught:
            await handle.result(timeout=LONG)

    assert caught.value.type == "ExceptionGroup"
    assert "StepFailed: Step 'fails' failed after 1 attempt with ValueError: declined" in caught.value.traceback
    assert (await rig.records(handle)).get("waits") in (None, "ABANDONED")


@workflow
async def from_within(ctx: Context) -> str:
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    try:
        await ctx.step("odd", step(cancels_itself).with_options(retry=Retry(max_attempts=1)))
    except StepFailed as error:
        return error.message
    return ""


async def test_a_body_that_cancels_itself_has_failed(rig: Rig) -> None:
    async with rig.working(from_within):
        assert await rig.execute(from_within) == "the step's body was cancelled from within"


@workflow
async def bad_names(ctx: Context, name: str) -> str:
    try:
        await ctx.step(name, needs_two, 1, 2)
    except errors.ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ["", "a#2", "$own", "line\nbreak", "x" * 201])
async def test_a_name_that_cannot_be_kept_is_refused_where_it_is_used(rig: Rig, name: str) -> None:
    async with rig.working(bad_names):
        assert "a step's name" in await rig.execute(bad_names, name)


@workflow(step_retry=Retry(max_attempts=1))
async def careless(ctx: Context, how: str) -> str:
    async def uses_ctx() -> Any:
        match how:
            case "step":
                return await ctx.step("inner", needs_two, 1, 2)
            case "sleep":
                return await ctx.sleep("inner", 1)
            case "now":
                return ctx.now()
            case "uuid":
                return ctx.uuid()
            case "set_state":
                return await ctx.set_state(1)
        raise AssertionError(how)

    try:
        await ctx.step("outer", uses_ctx)
    except StepFailed as error:
        return f"{error.type}: {error.message}"
    return ""


@pytest.mark.parametrize("how", ["step", "sleep", "now", "uuid", "set_state"])
async def test_a_body_cannot_use_the_context_of_its_workflow(rig: Rig, how: str) -> None:
    async with rig.working(careless):
        handle = await rig.client.start(careless, how)
        assert (await handle.result(timeout=LONG)).startswith(
            "OutsideWorkflow: This ctx belongs to the code of a workflow"
        )

    assert list(await rig.records(handle)) == ["outer"]


@workflow
async def calls_too_early(ctx: Context) -> str:
    try:
        await ctx.step("early", needs_two(1, 2))  # type: ignore[call-overload]
    except errors.ConfigError as error:
        return str(error)
    return ""


async def test_a_coroutine_in_place_of_a_function_is_refused(rig: Rig) -> None:
    async with rig.working(calls_too_early):
        assert "the function and the arguments separately" in await rig.execute(calls_too_early)


@workflow
async def asks_too_much(ctx: Context, what: str) -> None:
    match what:
        case "sleep":
            await ctx.sleep("long", "4000 days")
        case "moment":
            await ctx.sleep_until("late", datetime(2200, 1, 1, tzinfo=UTC))
        case "zone":
            await ctx.sleep_until("where", datetime(2100, 1, 1))  # noqa: DTZ001 - the mistake
        case "state":
            await ctx.set_state("x" * 70_000)
        case "text":
            await ctx.set_state({"text": "\0"})
        case "child":
            await ctx.run_child("child", asks_too_much, "", priority=7)
        case "option":
            await ctx.run_child("child", asks_too_much, "", prio=1)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("sleep", "too long to wait"),
        ("moment", "cannot wait beyond the year 2199"),
        ("zone", "needs a datetime with a time zone"),
        ("state", "JSON document of at most 65536 bytes"),
        ("text", "a text with NUL"),
        ("child", "priority=7 must be a whole number from 0 to 4"),
        ("option", "a child takes the options .*, not prio"),
    ],
)
async def test_what_cannot_be_stored_fails_the_run_and_says_why(rig: Rig, what: str, message: str) -> None:
    async with rig.working(asks_too_much):
        with pytest.raises(RunFailed, match=message):
            await rig.execute(asks_too_much, what)


closing: list[str] = []


@workflow
async def clings(ctx: Context) -> str:
    try:
        return str(await ctx.receive("go", str))
    except Exception:
        closing.append("swallowed")
        raise
    finally:
        try:
            await ctx.step("cleanup", needs_two, 1, 2)
        except BaseException as error:
            closing.append(type(error).__name__)
            raise


async def test_a_run_that_is_dropped_hears_nothing_that_it_could_swallow_and_records_nothing(rig: Rig) -> None:
    closing.clear()
    async with rig.working(clings, residents=0):
        handle = await rig.client.start(clings)
        await rig.sleeping(handle)
        assert closing == ["Dropped"]
        assert await rig.records(handle) == {"go": "RUNNING"}
        await handle.signal("go", "on")
        assert await handle.result(timeout=LONG) == "on"
    assert await rig.records(handle) == {"go": "COMPLETED", "cleanup": "COMPLETED"}


order: list[str] = []


async def first() -> str:
    await gate.wait()
    order.append("first body")
    return "first"


async def second() -> str:
    order.append("second body")
    return "second"


@workflow
async def hurries(ctx: Context) -> list[str]:
    result = await ctx.step("first", first)
    order.append("code runs ahead")
    gate.note("ahead")
    return [result, await ctx.step("second", second)]


async def test_no_body_begins_before_what_the_code_has_got_is_durable(rig: Rig) -> None:
    order.clear()
    async with rig.working(hurries):
        handle = await rig.client.start(hurries)
        await gate.arrival()
        await rig.until("select 1 from kagzi.step_runs where run_id = $1", handle.run_id)
        connection = await asyncpg.connect(rig.url)
        async with connection.transaction():
            await connection.execute("select 1 from kagzi.workflow_runs where run_id = $1 for update", handle.run_id)
            gate.open()
            assert await gate.arrival() == "ahead"
            # Time enough for a body that does not wait for the result before it.
            await connection.execute("select pg_sleep(0.3)")
            assert order == ["first body", "code runs ahead"]
        await connection.close()
        assert await handle.result(timeout=LONG) == ["first", "second"]
