"""Effects whose outcome is unknown: never run again on a guess. A person's answer, a reconciler's answer, and the proof
that nothing happened are the only ways on.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from kagzi import Applied, Context, Handle, NonRetryable, Retry, RetryAfter, StepFailed, Unclear, step, workflow
from kagzi.protocol.v1.common_pb2 import Payload
from kagzi.protocol.v1.workflow_pb2 import ResolveStepRequest
from kagzi.protocol.v1.workflow_pb2_grpc import WorkflowServiceStub
from kagzi.sdk import effects
from tests.sdk import charges
from tests.sdk.charges import attempt, pay
from tests.sdk.rig import LONG, Gate, Marks, Rig, doomed, rigged
from tests.sdk.scenes import DOOMED

APPLIED, NOT_APPLIED, FAIL = ResolveStepRequest.APPLIED, ResolveStepRequest.NOT_APPLIED, ResolveStepRequest.FAIL


@pytest.fixture(autouse=True)
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Marks:
    made = Marks(tmp_path / "marks")
    monkeypatch.setenv(Marks.VARIABLE, str(made.path))
    monkeypatch.setattr(effects, "_UNCLEAR_FIRST_MS", 10)
    charges.asked.clear()
    charges.failing.clear()
    return made


gate = Gate()


@pytest.fixture(autouse=True)
def new_gate() -> Iterator[None]:
    global gate  # noqa: PLW0603 - the bodies of a worker find it by name
    gate = Gate()
    yield
    gate.open()


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with rigged(database_url) as rig:
        yield rig


async def resolve(
    rig: Rig,
    handle: Handle[Any],
    resolution: ResolveStepRequest.Resolution.ValueType,
    result: Any = None,
    step: str = "charge",
) -> None:
    request = ResolveStepRequest(run_id=handle.run_id, step_id=step, resolution=resolution, reason="a person said so")
    if result is not None:
        request.result.CopyFrom(Payload(data=json.dumps(result).encode()))
    async with grpc.aio.insecure_channel(rig.address) as channel:
        await WorkflowServiceStub(channel).ResolveStep(request)


async def unknown(rig: Rig, handle: Handle[Any], step: str = "charge") -> None:
    """The run waits for a person."""
    (waiting,) = await rig.sleeping(handle)
    assert waiting["step"] == step
    assert (await rig.records(handle))[step] == "UNKNOWN"


ANSWERS = ["applied", "absent", "later", "unclear", "broken", "nonsense", "nobody"]


async def test_an_effect_whose_worker_was_killed_is_not_run_again_blindly(database_url: str, marks: Marks) -> None:
    async with rigged(database_url, lease=2.0) as rig:
        with doomed(rig, "tests.sdk.charges", **{DOOMED: "1"}) as worker:
            handles = {answer: await rig.client.start(pay, answer) for answer in ANSWERS}
            for _ in handles:
                await worker.says("charged")
            worker.kill()

        def charged(answer: str) -> int:
            return marks.read().count(f"charged {handles[answer].run_id}")

        async with rig.working(pay):
            assert await handles["applied"].result(timeout=LONG) == "paid before"
            assert charged("applied") == 1

            assert await handles["absent"].result(timeout=LONG) == "paid"
            assert charged("absent") == 2
            assert await rig.attempts(handles["absent"], "charge") == ["FAILED", "COMPLETED"]

            assert await handles["later"].result(timeout=LONG) == "paid before, as it turned out"
            assert charged("later") == 1

            for answer in ("unclear", "broken", "nonsense", "nobody"):
                await unknown(rig, handles[answer])
                assert charged(answer) == 1
            for answer in ("unclear", "broken", "nonsense"):
                assert charges.asked.count(f"{handles[answer].run_id}/charge") == 5

            await resolve(rig, handles["unclear"], APPLIED, "paid, says the bank")
            await resolve(rig, handles["broken"], NOT_APPLIED)
            await resolve(rig, handles["nobody"], FAIL)
            assert await handles["unclear"].result(timeout=LONG) == "paid, says the bank"
            assert await handles["broken"].result(timeout=LONG) == "paid"
            assert await handles["nobody"].result(timeout=LONG) == "ResolvedAsFailed: a person said so"
            assert [charged(answer) for answer in ("unclear", "broken", "nobody")] == [1, 2, 1]


async def test_a_reconciler_that_cannot_say_keeps_no_worker_and_is_counted_on_by_the_next(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "_UNCLEAR_FIRST_MS", 10_000)
    happened: list[str] = []

    @step(effect=True)
    async def call() -> None:
        happened.append("called")
        raise ConnectionError("the line broke")

    @call.reconcile
    async def ask(key: str) -> Unclear:
        happened.append("asked")
        return Unclear()

    @workflow
    async def unsure(ctx: Context) -> None:
        await ctx.step("call", call)

    handle = await rig.client.start(unsure)
    for number in range(1, 6):
        async with rig.working(unsure):
            await rig.until("select 1 from kagzi.step_runs where run_id = $1 and unclear = $2", handle.run_id, number)
            (waiting,) = await rig.sleeping(handle)
        assert ("until" in waiting) == (number < 5)
        (record,) = await handle.steps()
        assert record.error is not None
        assert record.error.message == "the line broke"
        # Each pause is twice as long as the one before, counted from the record.
        query = "update kagzi.step_runs set retry_at = now() where run_id = $1 and retry_at > now() + $2 returning 1"
        assert bool(await rig.fetch(query, handle.run_id, timedelta(seconds=9 * 2 ** (number - 1)))) == (number < 5)
        await rig.fetch("update kagzi.workflow_runs set available_at = now() where run_id = $1", handle.run_id)
    assert happened == ["called"] + ["asked"] * 5


async def test_the_intent_of_an_effect_is_durable_before_its_body_begins(rig: Rig) -> None:
    async def looks(run_id: str) -> list[Any]:
        (row,) = await rig.fetch("select status, effect from kagzi.step_runs where run_id = $1", run_id)
        return list(row.values())

    @workflow
    async def careful(ctx: Context) -> list[Any]:
        return await ctx.step("look", step(effect=True)(looks), ctx.run_id)

    async with rig.working(careful):
        assert await rig.execute(careful) == ["RUNNING", True]


@pytest.mark.parametrize(
    "error",
    [ValueError("?"), NonRetryable("?"), RetryAfter("1ms"), TimeoutError()],
    ids=lambda error: type(error).__name__,
)
async def test_every_error_but_the_proof_is_doubt(rig: Rig, marks: Marks, error: Exception) -> None:
    charges.failing.append(error)
    async with rig.working(attempt):
        handle = await rig.client.start(attempt)
        await unknown(rig, handle, "do")

    assert marks.read() == ["tried"]


async def test_not_applied_makes_an_effect_retryable(rig: Rig, marks: Marks) -> None:
    charges.failing.extend([charges.not_applied(), charges.not_applied()])
    async with rig.working(attempt):
        handle = await rig.client.start(attempt)
        assert await handle.result(timeout=LONG) == "done"

    assert marks.read() == ["tried"] * 3
    assert await rig.attempts(handle, "do") == ["FAILED", "FAILED", "COMPLETED"]


async def test_an_effect_that_is_never_applied_uses_up_its_tries(rig: Rig) -> None:
    charges.failing.extend(charges.not_applied() for _ in range(5))
    async with rig.working(attempt):
        assert await rig.execute(attempt) == "NotApplied after 3"


async def hangs() -> str:
    return str(await gate.wait("in the middle"))


slow = step(effect=True)(hangs)


@workflow
async def late(ctx: Context) -> str:
    return await ctx.step("slow", slow.with_options(timeout="30ms"))


async def test_an_effect_that_takes_too_long_is_in_doubt(rig: Rig) -> None:
    async with rig.working(late):
        await unknown(rig, await rig.client.start(late), "slow")


room = threading.Event()


def occupies() -> bool:
    return room.wait(LONG)


def enters() -> str:
    Marks.leave("entered")
    return "entered"


@workflow
async def crowded(ctx: Context) -> str:
    first = asyncio.create_task(ctx.step("occupies", occupies))
    try:
        return await ctx.step("enters", step(effect=True, timeout="30ms", retry=Retry(max_attempts=1))(enters))
    except StepFailed as failed:
        return failed.type
    finally:
        room.set()
        await first


async def test_an_effect_whose_time_was_over_before_it_got_a_thread_is_not_in_doubt(rig: Rig, marks: Marks) -> None:
    room.clear()
    async with rig.working(crowded, concurrency=1):
        handle = await rig.client.start(crowded)
        assert await handle.result(timeout=LONG) == "TimeoutError"

    assert marks.read() == []
    assert await rig.attempts(handle, "enters") == ["FAILED"]


@workflow
async def impatient(ctx: Context) -> str:
    try:
        return await asyncio.wait_for(ctx.step("slow", slow), 0.05)
    except TimeoutError:
        return "gave up"


async def test_an_effect_whose_waiter_is_gone_is_in_doubt_and_the_run_goes_on(rig: Rig) -> None:
    async with rig.working(impatient):
        handle = await rig.client.start(impatient)
        assert await handle.result(timeout=LONG) == "gave up"

    assert (await rig.records(handle))["slow"] == "UNKNOWN"


@workflow
async def drained(ctx: Context) -> str:
    return await ctx.step("slow", slow)


async def test_an_effect_that_a_stopping_worker_cut_off_is_in_doubt(rig: Rig) -> None:
    async with rig.working(drained):
        handle = await rig.client.start(drained)
        await gate.arrival()
    assert (await rig.records(handle))["slow"] == "UNKNOWN"

    async with rig.working(drained):
        await unknown(rig, handle, "slow")
        await resolve(rig, handle, APPLIED, "it was done", step="slow")
        assert await handle.result(timeout=LONG) == "it was done"


@workflow
async def beside(ctx: Context) -> list[Any]:
    async def fails() -> str:
        raise ValueError("who knows")

    return list(await asyncio.gather(ctx.step("other", hangs), ctx.step("charge", step(effect=True)(fails))))


async def test_an_answer_reaches_a_run_that_is_busy_with_something_else(rig: Rig) -> None:
    async with rig.working(beside):
        handle = await rig.client.start(beside)
        await gate.arrival()
        await rig.until("select 1 from kagzi.step_runs where run_id = $1 and status = 'UNKNOWN'", handle.run_id)
        await resolve(rig, handle, APPLIED, "done, says a person")
        await rig.until(
            "select 1 from kagzi.step_runs where run_id = $1 and step_id = 'charge' and status = 'COMPLETED'",
            handle.run_id,
        )
        gate.open()
        assert await handle.result(timeout=LONG) == ["in the middle", "done, says a person"]


@workflow
async def again(ctx: Context) -> str:
    return await ctx.step("do", charges.doubtful)


async def test_an_answer_counts_for_the_attempt_it_is_about(rig: Rig, marks: Marks) -> None:
    charges.failing.extend([ValueError("?"), ValueError("?")])
    async with rig.working(again):
        handle = await rig.client.start(again)
        await unknown(rig, handle, "do")
        await resolve(rig, handle, NOT_APPLIED, step="do")
        await rig.until(
            "select 1 from kagzi.step_runs where run_id = $1 and attempt_number = 2 and status = 'UNKNOWN'",
            handle.run_id,
        )
        await unknown(rig, handle, "do")
        await resolve(rig, handle, APPLIED, "the second time", step="do")
        assert await handle.result(timeout=LONG) == "the second time"

    assert marks.read() == ["tried", "tried"]


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    @step(effect=True, retry=Retry(max_attempts=1))
    async def sell(self, thing: str) -> str:
        raise ValueError("?")

    @sell.reconcile
    async def sold(self, key: str, thing: str) -> Applied:
        return Applied(f"{thing} sold by {self.name}")


@workflow
async def shopping(ctx: Context) -> str:
    return await ctx.step("sell", Shop("Kiosk").sell, "paper")


async def test_a_method_can_be_an_effect_with_a_reconciler(rig: Rig) -> None:
    async with rig.working(shopping):
        assert await rig.execute(shopping) == "paper sold by Kiosk"
