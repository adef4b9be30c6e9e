"""The reply to a call about a schedule or an automation is lost after it took effect, or the server loses the answer to
its commit. It is asked for again, takes effect once, and the caller hears of nothing. Those about runs are in
tests/survival/test_lost_replies.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kagzi import Automation, Client, Context, PrepareContext, Prepared, ProducerContext, Worker, faults, workflow
from kagzi.sdk.inputs import Input
from tests.conformance.contract import eventually
from tests.sdk.serving import serving
from tests.survival.record import rows
from tests.survival.relay import Relay

START = datetime(2024, 1, 1, tzinfo=UTC)
RUNS = (
    "select count(*) from kagzi.workflow_runs where schedule_id is not null and status not in ('SCHEDULED', 'PAUSED')"
)


@workflow
async def nothing(ctx: Context) -> None:
    """Nobody runs it."""


def post() -> Automation:
    automation = Automation("post", accepts="letter")

    @automation.producer(every="1h", publishes="parcel")
    async def collect(ctx: ProducerContext, state: Any) -> Any:
        return state

    @automation.consumer(subscribe="letter")
    class Keep:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            return Prepared()

    return automation


@dataclass(frozen=True, slots=True)
class Desk:
    """A client whose replies get lost, one that goes past that, and the database."""

    url: str
    address: str
    relay: Relay
    lossy: Client
    direct: Client

    async def value(self, query: str) -> Any:
        [(value,)] = await rows(self.url, query)
        return value


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[Desk]:
    async with (
        serving(database_url) as server,
        Relay(server.address) as relay,
        Client(relay.address) as lossy,
        Client(server.address) as direct,
    ):
        yield Desk(database_url, server.address, relay, lossy, direct)


async def _schedule(desk: Desk) -> None:
    await desk.direct.schedules.create("daily", nothing, every="1d", start_at=START, max_catchup=0)


async def _create(desk: Desk) -> None:
    await desk.lossy.schedules.create("daily", nothing, every="1d")
    assert await desk.value("select count(*) from kagzi.workflow_runs") == 1


async def _update(desk: Desk) -> None:
    await _schedule(desk)
    changed = await desk.lossy.schedules.handle("daily").update(every="2d")
    assert changed.every == timedelta(days=2)


async def _pause(desk: Desk) -> None:
    await _schedule(desk)
    await desk.lossy.schedules.handle("daily").pause("holidays")
    assert await desk.value("select status from kagzi.workflow_runs where schedule_id is null") == "PAUSED"


async def _resume(desk: Desk) -> None:
    await _schedule(desk)
    await desk.direct.schedules.handle("daily").pause()
    await desk.lossy.schedules.handle("daily").resume()
    assert await desk.value("select status from kagzi.workflow_runs where schedule_id is null") == "SCHEDULED"


async def _trigger(desk: Desk) -> None:
    await _schedule(desk)
    before = await desk.value(RUNS)
    handle = await desk.lossy.schedules.handle("daily").trigger()
    assert handle is not None
    assert await desk.value(RUNS) == before + 1


async def _backfill(desk: Desk) -> None:
    await _schedule(desk)
    before = await desk.value(RUNS)
    filled = await desk.lossy.schedules.handle("daily").backfill(START, START + timedelta(days=5))
    assert len(filled.runs) == 5
    assert await desk.value(RUNS) == before + 5


async def _delete(desk: Desk) -> None:
    await _schedule(desk)
    await desk.lossy.schedules.handle("daily").delete()
    assert await desk.value("select count(*) from kagzi.workflow_runs where status in ('SCHEDULED', 'PAUSED')") == 0


async def _pause_automation(desk: Desk) -> None:
    assert (await desk.lossy.automations.pause("post")).status == "PAUSED"


async def _resume_automation(desk: Desk) -> None:
    await desk.direct.automations.pause("post")
    assert (await desk.lossy.automations.resume("post")).status == "ACTIVE"


async def _run_now(desk: Desk) -> None:
    ended = "select count(*) from kagzi.workflow_runs where handler = 'collect' and status = 'COMPLETED'"
    await eventually(lambda: desk.value(ended), lambda count: count == 1, within=60)
    await desk.lossy.automations.run_now("post")
    await eventually(lambda: desk.value(ended), lambda count: count == 2, within=60)
    assert (await desk.direct.automations.get("post")).live_run is None


async def _publish(desk: Desk) -> None:
    await desk.direct.automations.pause("post")
    await desk.lossy.automations.publish("post", "letter", id="7", payload="dear")
    assert await desk.value("select count(*) from kagzi.events") == 1
    assert await desk.value("select count(*) from kagzi.deliveries") == 1


async def _skip_input(desk: Desk) -> None:
    await desk.direct.automations.pause("post")
    source = Input("mail", "letter", "7")
    await desk.direct.automations.publish("post", "letter", id="7", payload="dear", input=source)
    await desk.lossy.automations.skip_input("post", "mail", "letter", "7")
    assert await desk.value("select status from kagzi.deliveries") == "SKIPPED"


Case = Callable[[Desk], Awaitable[None]]
SCHEDULES: dict[str, Case] = {
    "CreateSchedule": _create,
    "UpdateSchedule": _update,
    "PauseSchedule": _pause,
    "ResumeSchedule": _resume,
    "TriggerSchedule": _trigger,
    "BackfillSchedule": _backfill,
    "DeleteSchedule": _delete,
}
AUTOMATIONS: dict[str, Case] = {
    "PauseAutomation": _pause_automation,
    "ResumeAutomation": _resume_automation,
    "RunNow": _run_now,
    "Publish": _publish,
    "SkipInput": _skip_input,
}


@pytest.fixture(params=["the reply", "the answer to the commit"])
def losing(request: pytest.FixtureRequest, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Loses what follows on a call, between server and client or between database and server."""

    def lose(method: str) -> None:
        if request.param == "the reply":
            desk.relay.lose(method)
            return
        monkeypatch.setattr(faults, "ON", True)
        monkeypatch.setattr(faults, "_faults", faults.read("transaction.committed=error:08006%50"))

    return lose


async def _judge(desk: Desk, method: str, case: Case) -> None:
    await case(desk)
    if desk.relay.passed.count(method) != 1:
        assert desk.relay.lost.is_set()
        assert desk.relay.passed.count(method) == 2
    else:
        assert faults.ON


@pytest.mark.parametrize("method", SCHEDULES)
async def test_row_06_a_call_about_a_schedule_takes_effect_once_although_what_follows_on_it_is_lost(
    desk: Desk, losing: Callable[[str], None], method: str
) -> None:
    losing(method)
    await _judge(desk, method, SCHEDULES[method])


@pytest.mark.parametrize("method", AUTOMATIONS)
async def test_row_06_a_call_about_an_automation_takes_effect_once_although_what_follows_on_it_is_lost(
    desk: Desk, losing: Callable[[str], None], method: str
) -> None:
    async with Worker(desk.address, automations=[post()]):
        losing(method)
        await _judge(desk, method, AUTOMATIONS[method])
