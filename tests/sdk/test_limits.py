"""Limits that a run meets: each fails it at once, with an error that says what to do, and nothing is tried again."""

import pytest
from google.protobuf.message import Message

from kagzi import Client, Context, Retry, RunFailed, workflow
from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import FUNCTION, ErrorDetail, Payload
from tests.sdk.rig import LONG, rigged
from tests.sdk.serving import Play, completed, new_id, serving, step, working

bodies: list[int] = []


async def large(size: int) -> str:
    bodies.append(size)
    # With its quotes it is as many bytes as it says.
    return "x" * (size - 2)


@workflow(retry=Retry(max_attempts=3, initial="1ms"), step_retry=Retry(max_attempts=3, initial="1ms"))
async def hoarder(ctx: Context, sizes: list[int]) -> int:
    for size in sizes:
        await ctx.step("large", large, size)
    return len(sizes)


@workflow(retry=Retry(max_attempts=3, initial="1ms"))
async def endless(ctx: Context) -> None:
    while True:
        ctx.now()


async def test_results_beyond_the_bytes_of_a_history_fail_the_run_once_and_for_all(database_url: str) -> None:
    bodies.clear()
    async with rigged(database_url, limit_history_bytes=100_000) as rig, rig.working(hoarder):
        assert await rig.execute(hoarder, [60_000, 40_000]) == 2
        full = r"at most 100000 bytes .* would hold 100001: .* continue as new"
        with pytest.raises(RunFailed, match=full) as failed:
            await rig.execute(hoarder, [60_000, 40_001])
    assert failed.value.type == "LimitExceeded"
    assert bodies == [60_000, 40_000, 60_000, 40_001]


async def test_a_run_with_too_many_steps_fails_and_says_what_to_do(database_url: str) -> None:
    async with rigged(database_url, limit_history_steps=30) as rig, rig.working(endless):
        handle = await rig.client.start(endless)
        with pytest.raises(RunFailed, match=r"at most 30 steps: .* ctx\.continue_as_new") as failed:
            await handle.result(timeout=LONG)
        assert (failed.value.type, (await handle.describe()).attempts) == ("LimitExceeded", 1)
        assert len(await handle.steps()) == 29


def beyond(delivery: pb.Delivery) -> list[tuple[str, Message]]:
    body = pb.StepCompleted(
        step_id="s", attempt_id=new_id(), attempt_number=1, kind=FUNCTION, position=20_001, completed_seq=2
    )
    return [step("first", 1), ("step_completed", body), completed()]


def huge(delivery: pb.Delivery) -> list[tuple[str, Message]]:
    body = pb.StepCompleted(step_id="s", attempt_id=new_id(), attempt_number=1, kind=FUNCTION, position=2)
    body.output.CopyFrom(Payload(data=bytes(2 * 1024 * 1024 + 1)))
    return [step("first", 1), ("step_completed", body), completed()]


@pytest.mark.parametrize("play", [beyond, huge])
async def test_a_worker_in_any_language_that_goes_beyond_a_limit_has_failed_its_run(
    database_url: str, play: Play
) -> None:
    async with (
        serving(database_url) as server,
        working(server.address, order=play) as hand,
        Client(server.address) as client,
    ):
        handle = await client.start("order", retry=Retry(max_attempts=3))
        with pytest.raises(RunFailed) as failed:
            await handle.result(timeout=LONG)
        assert failed.value.type == "LimitExceeded"
        assert [record.step_id for record in await handle.steps()] == ["first"]
        codes = [answer.refused.code for answer in hand.refused]
        assert codes == [ErrorDetail.LIMIT_EXCEEDED, ErrorDetail.PREDECESSOR_REFUSED]
