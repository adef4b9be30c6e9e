"""An environment as a stranger would use it: start things, let days pass, look at what came of them."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

import kagzi
from kagzi import Context, Retry, step, workflow
from kagzi.errors import ConfigError, RunCancelled, RunFailed
from kagzi.testing import Environments, Standstill, environment
from tests.testing import shop
from tests.testing.shop import Approval, Order, Receipt


@pytest.fixture(autouse=True)
def _nothing_happened() -> None:
    shop.log.happened.clear()
    shop.tries.clear()


async def test_a_run_is_started_and_awaited() -> None:
    @workflow
    async def greet(ctx: Context, name: str) -> str:
        return f"hello {name}"

    async with environment(workflows=[greet]) as env:
        assert await env.run(greet, "world") == "hello world"
        assert await env.run("greet", "again", id="second") == "hello again"


async def test_an_order_takes_days_and_the_test_no_time(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.buying, shop.shipping])
    began = time.monotonic()
    handle = await env.client.start(shop.buying, Order("7", 4200), id="order-7")
    await env.skip("23h")
    assert (await handle.describe()).status == "SLEEPING"
    assert shop.log.happened == ["charge 7"]
    await env.skip("1h")
    assert [wait["kind"] for wait in (await handle.describe()).waiting] == ["SIGNAL"]
    await env.skip("2d")
    await handle.signal("approved", Approval("Ada"))
    await env.skip("2d")
    assert await handle.result(timeout=30) == Receipt("7", "payment of 4200", "Ada", "parcel 7")
    assert await handle.state() == {"approved": True}
    assert shop.log.happened == ["charge 7", "hand over 7"]
    assert time.monotonic() - began < 60


async def test_a_signal_that_does_not_come_times_out(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.buying, shop.shipping])
    handle = await env.client.start(shop.buying, Order("8", 1))
    await env.skip("1d")
    await env.skip(timedelta(days=2, hours=23))
    assert await handle.state() is None
    await env.skip("2h")
    assert await handle.state() == {"approved": False}
    await env.skip("2d")
    assert (await handle.result(timeout=30)).approved_by is None


async def test_steps_are_retried_minutes_later(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.stubborn])
    handle = await env.client.start(shop.stubborn, 5)
    for minutes, expected in ((0, 1), (1, 2), (2, 3), (4, 4), (8, 5)):
        await env.skip(f"{minutes}m")
        assert len(shop.tries) == expected
    assert len(await handle.result(timeout=30)) == 5


async def test_a_reconciler_that_cannot_say_is_asked_again_in_skipped_time(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.paying])
    handle = await env.client.start(shop.paying)
    await env.settle()
    assert (len(shop.tries), (await handle.describe()).status) == (1, "SLEEPING")
    await env.skip("9s")
    assert len(shop.tries) == 1
    await env.skip("1s")
    assert len(shop.tries) == 2
    await env.skip("20s")
    assert await handle.result(timeout=30) == "paid before"


async def test_a_step_that_fails_too_often_fails_the_run(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.stubborn])
    handle = await env.client.start(shop.stubborn, 100)
    await env.skip("1h")
    with pytest.raises(RunFailed, match="nobody answers"):
        await handle.result(timeout=30)
    assert len(shop.tries) == 5


async def test_a_whole_workflow_is_retried_hours_later(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.whole])
    handle = await env.client.start(shop.whole)
    for minutes, failures in ((0, 1), (59, 1), (2, 2), (178, 2)):
        await env.skip(f"{minutes}m")
        assert (await handle.describe()).attempts == failures
    await env.skip("2m")
    assert await handle.result(timeout=30) == 3


async def test_thirty_days_pass_one_after_another(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.digest])
    began, first_day = time.monotonic(), env.now()
    handle = await env.client.start(shop.digest, 30)
    await env.skip("30d")
    assert len(await handle.result(timeout=30)) == 30
    assert time.monotonic() - began < 60
    written = [one.finished_at for one in await handle.steps() if one.kind == "FUNCTION"]
    for day, moment in enumerate(written, start=1):
        assert moment is not None
        assert timedelta(days=day) <= moment - first_day < timedelta(days=day, minutes=1)


async def test_timers_ring_in_the_order_of_their_times(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.racing])
    handle = await env.client.start(shop.racing)
    await env.skip("4d")
    long, short, middle = await handle.result(timeout=30)
    assert timedelta(milliseconds=10) <= short < timedelta(minutes=1)
    assert timedelta(minutes=90) <= middle < timedelta(minutes=91)
    assert timedelta(days=3) <= long < timedelta(days=3, minutes=1)


async def test_many_runs_wake_in_the_order_of_their_times(kagzi_env: Environments) -> None:
    woke: list[int] = []

    async def wake(hours: int) -> None:
        woke.append(hours)

    @workflow
    async def sleeper(ctx: Context, hours: int) -> None:
        await ctx.sleep("nap", timedelta(hours=hours))
        await ctx.step("wake", wake, hours)

    env = await kagzi_env(workflows=[sleeper])
    hours = [17, 3, 29, 11, 5, 23, 2, 19, 7, 13]
    await asyncio.gather(*(env.client.start(sleeper, each) for each in hours))
    await env.skip("30h")
    assert woke == sorted(hours)


async def test_a_deadline_ends_a_run_in_skipped_time(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.hurried])
    handle = await env.client.start(shop.hurried)
    await env.skip("119m")
    assert (await handle.describe()).status == "SLEEPING"
    await env.skip("1m")
    with pytest.raises(RunFailed, match="DeadlineExceeded"):
        await handle.result(timeout=30)
    assert shop.log.happened == ["tidied up"]


async def test_a_run_that_does_not_end_at_its_deadline_is_ended(kagzi_env: Environments) -> None:
    @workflow(timeout="1h")
    async def deaf(ctx: Context) -> None:
        try:
            await ctx.sleep("long", "1d")
        finally:
            await ctx.sleep("still long", "1d")

    env = await kagzi_env(workflows=[deaf])
    handle = await env.client.start(deaf)
    await env.skip("1h10s")
    assert (await handle.describe()).status == "SLEEPING"
    await env.skip("30s")
    with pytest.raises(RunFailed, match="DeadlineExceeded"):
        await handle.result(timeout=30)


async def test_a_delayed_start_waits_for_the_clock(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.shipping])
    delayed = await env.client.start(shop.shipping, "1", delay="1w")
    dated = await env.client.start(shop.shipping, "2", at=env.now() + timedelta(days=3))
    await env.skip("6d")
    assert (await delayed.describe()).status == "PENDING"
    assert await dated.result(timeout=30) == "parcel 2"
    await env.skip("3d")
    assert await delayed.result(timeout=30) == "parcel 1"


async def test_a_cancelled_run_cleans_up(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.hurried])
    handle = await env.client.start(shop.hurried)
    await env.skip("1h")
    await handle.cancel("changed my mind")
    with pytest.raises(RunCancelled, match="changed my mind"):
        await handle.result(timeout=30)
    assert shop.log.happened == ["tidied up"]


async def test_the_clock_of_the_code_is_that_of_the_environment(kagzi_env: Environments) -> None:
    @workflow
    async def tell(ctx: Context) -> datetime:
        return ctx.now()

    env = await kagzi_env(workflows=[tell])
    before = env.now()
    assert abs(before - datetime.now(UTC)) < timedelta(seconds=30)
    await env.skip("365d")
    assert timedelta(days=365) <= env.now() - before < timedelta(days=365, minutes=1)
    assert abs(await env.run(tell) - env.now()) < timedelta(minutes=1)
    handle = await env.client.start(tell)
    await handle.result()
    assert abs((await handle.describe()).created_at - env.now()) < timedelta(minutes=1)


async def test_a_skip_sees_what_was_begun_before_it(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.shipping])
    running = asyncio.create_task(env.run(shop.shipping, "9"))
    executing = asyncio.create_task(env.client.execute(shop.shipping, "10"))
    await env.skip("2d")
    assert await asyncio.wait_for(running, 60) == "parcel 9"
    assert await asyncio.wait_for(executing, 60) == "parcel 10"


async def test_a_skip_waits_for_step_bodies(kagzi_env: Environments) -> None:
    ended = asyncio.Event()
    let_go = asyncio.Event()

    async def slow() -> None:
        await let_go.wait()
        ended.set()

    @workflow
    async def working(ctx: Context) -> None:
        await asyncio.gather(ctx.step("slow", slow), ctx.sleep("long", "1d"))

    env = await kagzi_env(workflows=[working])
    handle = await env.client.start(working)
    skipping = asyncio.create_task(env.skip("1d"))
    before = env.now()
    await asyncio.wait({skipping}, timeout=0.2)
    assert not skipping.done()
    assert env.now() - before < timedelta(hours=1)
    let_go.set()
    await skipping
    assert ended.is_set()
    await handle.result(timeout=30)


async def test_what_keeps_the_clock_from_moving_is_named(
    kagzi_env: Environments, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dawdles, let_go = asyncio.Event(), asyncio.Event()

    async def dawdle() -> None:
        dawdles.set()
        await let_go.wait()

    @workflow
    async def dawdling(ctx: Context) -> None:
        await ctx.step("dawdle", dawdle)

    monkeypatch.setattr("kagzi.testing.rest._SPEAK_UP", 0.01)
    env = await kagzi_env(workflows=[dawdling])
    handle = await env.client.start(dawdling)
    await dawdles.wait()
    skipping = asyncio.create_task(env.skip("1d"))
    await asyncio.wait({skipping}, timeout=0.2)
    let_go.set()
    await skipping
    assert f"'dawdle' of run {handle.run_id} (dawdling)" in caplog.text


async def test_the_timeout_of_a_step_stays_real(kagzi_env: Environments) -> None:
    forever = asyncio.Event()

    @step(timeout="50ms", retry=Retry(max_attempts=1))
    async def hang() -> None:
        await forever.wait()

    @workflow
    async def hanging(ctx: Context) -> None:
        await ctx.step("hang", hang)

    env = await kagzi_env(workflows=[hanging])
    with pytest.raises(RunFailed, match=r"longer than 0\.05 s"):
        await env.run(hanging)


async def test_timers_of_asyncio_follow_the_clock(kagzi_env: Environments) -> None:
    @workflow
    async def patient(ctx: Context) -> list[str]:
        await asyncio.sleep(86_400)
        heard = ["slept for a day"]
        try:
            async with asyncio.timeout(3_600):
                await ctx.receive("word", str)
        except TimeoutError:
            heard.append("waited for an hour")
        which, _ = await ctx.select(late=ctx.sleep("late", "2d"), early=ctx.sleep("early", "1d"))
        return [*heard, which]

    env = await kagzi_env(workflows=[patient])
    handle = await env.client.start(patient)
    await env.skip("2d2h")
    assert await handle.result(timeout=30) == ["slept for a day", "waited for an hour", "early"]


async def test_after_settling_everything_rests(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.buying, shop.shipping])
    handles = [await env.client.start(shop.buying, Order(str(n), n)) for n in range(5)]
    await env.settle()
    assert [(await handle.describe()).status for handle in handles] == ["SLEEPING"] * 5
    assert len(shop.log.happened) == 5


async def test_workflows_of_several_queues_have_their_workers(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.posting, shop.shipping])
    posted = await env.client.start(shop.posting, "dear reader")
    shipped = await env.client.start(shop.shipping, "1")
    await env.skip("3d")
    assert await posted.result(timeout=30) == "dear reader"
    assert await shipped.result(timeout=30) == "parcel 1"


async def test_time_goes_on_by_itself_too(kagzi_env: Environments) -> None:
    @workflow
    async def blink(ctx: Context) -> str:
        await ctx.sleep("blink", "30ms")
        return "blinked"

    env = await kagzi_env(workflows=[blink])
    assert await asyncio.wait_for(env.run(blink), 5) == "blinked"


async def test_a_client_and_a_worker_of_ones_own_find_the_server(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.shipping])

    @workflow(queue="elsewhere")
    async def own(ctx: Context) -> str:
        await ctx.sleep("day", "1d")
        return "done elsewhere"

    async with kagzi.Worker(env.url, workflows=[own], queue="elsewhere"), kagzi.Client(env.url) as client:
        handle = await client.start(own)
        await env.skip("1d")
        assert await handle.result(timeout=30) == "done elsewhere"


async def test_environments_share_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    async with environment(workflows=[shop.shipping]) as env:
        await env.client.start(shop.shipping, "1", id="mine")
        await env.skip("1w")
    began = time.perf_counter()
    async with environment(workflows=[shop.shipping]) as env:
        opened = time.perf_counter() - began
        assert [run async for run in env.client.runs()] == []
        assert abs(env.now() - datetime.now(UTC)) < timedelta(seconds=30)
        async with environment(workflows=[shop.shipping]) as other:
            await other.client.start(shop.shipping, "2", id="mine")
            assert [run async for run in env.client.runs()] == []
        closing = time.perf_counter()
    closed = time.perf_counter() - closing
    with capsys.disabled():
        print(f"\na further environment: opened in {opened:.3f} s, closed in {closed:.3f} s")  # noqa: T201
    assert opened < 60


async def test_variables_for_other_servers_are_not_heeded(
    kagzi_env: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = {"URL": "localhost:1", "NAMESPACE": "other", "QUEUE": "other", "SERVER_PORT": "1", "DB_URL": "nowhere"}
    for name, value in elsewhere.items():
        monkeypatch.setenv(f"KAGZI_{name}", value)
    env = await kagzi_env(workflows=[shop.digest])
    assert await env.run(shop.digest, 0) == []
    assert env.client.namespace == "default"


async def test_what_was_kept_for_a_month_is_kept_in_skipped_time(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.whole])
    handle = await env.client.start(shop.whole)
    await env.skip("1d")
    await env.skip("400d")
    assert (await handle.describe()).status == "COMPLETED"


async def test_a_workflow_that_is_not_part_of_the_environment_is_refused(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.shipping])
    with pytest.raises(ConfigError, match=r"'buying' is not part of this environment.*workflows=\[shipping, buying\]"):
        await env.run(shop.buying, Order("1", 1))
    with pytest.raises(ConfigError, match="'unknown' is not part of this environment"):
        await env.run("unknown")


@pytest.mark.parametrize("length", [-1, "-1h", timedelta(seconds=-1), "soon", None])
async def test_the_clock_never_goes_back(kagzi_env: Environments, length: object) -> None:
    env = await kagzi_env(workflows=[shop.shipping])
    with pytest.raises(ConfigError, match="is not a duration"):
        await env.skip(length)  # type: ignore[arg-type]


async def test_an_environment_without_workflows_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs workflows"):
        async with environment():
            pass


async def test_a_run_that_nothing_will_end_is_told_of(kagzi_env: Environments, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kagzi.testing.harness._PATIENCE", 0.1)
    env = await kagzi_env(workflows=[shop.buying])
    with pytest.raises(Standstill, match=r"waits for the sleep 'cool off' until .*env\.skip"):
        await env.run(shop.buying, Order("1", 1))


async def test_a_child_that_nobody_runs_is_told_of(kagzi_env: Environments, monkeypatch: pytest.MonkeyPatch) -> None:
    @workflow
    async def parent(ctx: Context) -> None:
        await ctx.run_child("ship", shop.shipping, "1")

    monkeypatch.setattr("kagzi.testing.harness._PATIENCE", 0.1)
    env = await kagzi_env(workflows=[parent])
    with pytest.raises(Standstill, match=r"waits for the child 'ship'.*part of the environment"):
        await env.run(parent)


async def test_a_run_that_waits_a_moment_is_waited_for(
    kagzi_env: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    @workflow
    async def moment(ctx: Context) -> str:
        await ctx.sleep("a moment", "500ms")
        return "over"

    monkeypatch.setattr("kagzi.testing.harness._PATIENCE", 0.05)
    env = await kagzi_env(workflows=[moment])
    assert await env.run(moment) == "over"


async def test_a_test_that_fails_leaves_at_once() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    @workflow
    async def stuck(ctx: Context) -> None:
        await ctx.step("forever", forever)

    async def failing() -> None:
        async with environment(workflows=[stuck]) as env:
            await env.client.start(stuck)
            raise ZeroDivisionError

    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        await failing()
    assert time.monotonic() - began < 60


async def test_an_ending_test_waits_for_no_body() -> None:
    began_body = asyncio.Event()

    async def forever() -> None:
        began_body.set()
        await asyncio.Event().wait()

    @workflow
    async def stuck(ctx: Context) -> None:
        await ctx.step("forever", forever)

    async with environment(workflows=[stuck]) as env:
        await env.client.start(stuck)
        await began_body.wait()
        began = time.monotonic()
    assert time.monotonic() - began < 60
