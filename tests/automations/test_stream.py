"""Automations over the wire: a real server, a worker that speaks the stream, and nothing between them but frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
from google.protobuf.timestamp_pb2 import Timestamp

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1.common_pb2 import Payload
from kagzi.server.app import Server
from kagzi.server.settings import Settings
from tests.automations.player import Player, Refused, Run, acts, defined, playing, polls
from tests.automations.stage import MAIL, event

# So seldom that nothing here happens by it.
SELDOM = {"coordinator_interval_secs": 600, "dispatcher_interval_secs": 60}


@asynccontextmanager
async def _serving(url: str, **settings: Any) -> AsyncIterator[Server]:
    server = Server(Settings(server_port=0, **{**SELDOM, **settings}), url)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(1.0)


async def _seen(player: Player, condition: Callable[[pb.Automation], bool]) -> pb.Automation:
    """The automation, once it is as expected."""
    async with asyncio.timeout(60):
        while True:
            shown = (await player.automations.GetAutomation(pb.GetAutomationRequest(name="inbox"))).automation
            if condition(shown):
                return shown
            await asyncio.sleep(0.01)


class _Flowing(Player):
    """Producers publish five events on their first run."""

    async def play(self, run: Run) -> None:
        if run.task.kind == pb.HANDLER_PRODUCER and not run.task.HasField("state"):
            found = [event(f"m{number}", value=number, input=MAIL) for number in range(5)]
            await run.commit(*found, state={"done": True})
        else:
            await super().play(run)


async def test_events_flow_from_a_producer_through_two_consumers(database_url: str) -> None:
    flow = defined(polls(), acts(publishes=["row"]), acts("tell", ["row"]))
    async with _serving(database_url) as server, playing(server.address, flow, kind=_Flowing) as player:
        await player.until(lambda: player.played.count(("inbox", "tell")) >= 6)
        await player.until(lambda: not player.failures)
        found = await _seen(player, lambda shown: not shown.HasField("live_run"))
        assert found.status == pb.AUTOMATION_ACTIVE
        assert found.pending == 0
        assert player.most == 1
        listed = await player.automations.ListEvents(pb.ListEventsRequest(name="inbox", topic="row"))
        assert [one.deliveries[0].status for one in listed.events] == [pb.DELIVERY_CONSUMED] * 5
        assert {one.inputs[0].id for one in listed.events} == {"m1"}


async def test_what_is_chosen_is_handed_over_without_a_claim_on_the_place_that_became_free(
    database_url: str,
) -> None:
    flow = defined(polls(), acts(publishes=["row"]), acts("tell", ["row"]))
    async with _serving(database_url) as server, playing(server.address, flow, kind=_Flowing, slots=2) as player:
        await player.until(lambda: player.played.count(("inbox", "tell")) >= 6)
    connection = await asyncpg.connect(database_url)
    runs = await connection.fetch(
        "select created_at = started_at as handed from kagzi.workflow_runs order by created_at"
    )
    await connection.close()
    assert all(one.handler.pending for one in player.deliveries if one.handler.kind == pb.HANDLER_CONSUMER)
    # The first was chosen by the deployment, of which no worker's place is known.
    assert [row["handed"] for row in runs].count(False) <= 2
    assert len(runs) > 12


async def test_a_producer_runs_at_its_slots_without_any_tick(database_url: str) -> None:
    async with _serving(database_url) as server, playing(server.address, defined(polls(every_ms=1_000))) as player:
        await player.until(lambda: len(player.played) >= 3)
    assert player.triggers[:3] == [pb.TRIGGER_DEPLOY, pb.TRIGGER_SCHEDULE, pb.TRIGGER_SCHEDULE]


class _Waking(Player):
    """A consumer that asks to be woken a little later."""

    async def play(self, run: Run) -> None:
        wake_at = Timestamp()
        wake_at.FromDatetime(datetime.now(UTC) + timedelta(milliseconds=200))
        await run.prepare(wake_at=wake_at)
        await run.commit()


async def test_a_consumer_is_woken_at_its_time_also_by_a_server_that_was_started_since(database_url: str) -> None:
    settings = {"automation_wake_min_secs": 0.1}
    flow = defined(acts())
    async with _serving(database_url, **settings) as server, playing(server.address, flow, kind=_Waking) as player:
        await player.until(lambda: player.triggers.count(pb.TRIGGER_WAKE) >= 2)
    async with (
        _serving(database_url, **settings) as server,
        playing(server.address, flow, kind=_Waking, deploys=False) as player,
    ):
        await player.until(lambda: player.triggers.count(pb.TRIGGER_WAKE) >= 2)


async def test_a_publish_at_one_server_reaches_a_worker_at_another(database_url: str) -> None:
    async with _serving(database_url) as first, _serving(database_url) as second:
        await asyncio.gather(first.notifier.connected.wait(), second.notifier.connected.wait())
        async with playing(first.address, defined(acts())) as player, playing(second.address) as other:
            await player.until(lambda: len(player.played) == 1)
            answer = await other.automations.Publish(pb.PublishRequest(name="inbox", events=[event("m1")]))
            assert (answer.created, answer.status) == (1, pb.AUTOMATION_ACTIVE)
            await player.until(lambda: len(player.played) == 3)


class _Wrong(Player):
    """A consumer that breaks a rule."""

    async def play(self, run: Run) -> None:
        await run.prepare()
        await run.commit(event("r1", "nowhere"))


async def test_a_refused_operation_is_failed_by_its_worker_and_blocks_with_that_message(database_url: str) -> None:
    async with _serving(database_url) as server, playing(server.address, defined(acts()), kind=_Wrong) as player:
        await player.until(lambda: player.failures)
        found = await _seen(player, lambda shown: shown.status == pb.AUTOMATION_BLOCKED)
    assert found.blocked.code == pb.BLOCKED_DEFECT
    assert "publishes to 'nowhere', which it does not declare" in found.blocked.message
    assert found.handlers[0].last_failure.message in found.blocked.message


class _Bad(Player):
    """Sends what no worker should, and keeps what it is told."""

    told: list[tuple[str, str]]

    async def play(self, run: Run) -> None:
        self.told = []
        huge = Payload(data=bytes((2 << 20) + 1))
        step = run.step("prepare")
        for body in (
            {"peek_events": pb.PeekEvents(topic="mail", limit=1_001)},
            {"peek_events": pb.PeekEvents(topic="mail", cursor="x")},
            {"get_events": pb.GetEvents(topic="mail", event_ids=["e"] * 1_001)},
            {"commit_prepare": pb.CommitPrepare(step=step, prepared=pb.PreparedWork(data=huge))},
            {"commit_prepare": pb.CommitPrepare(step=step, prepared=pb.PreparedWork(title="x" * 1_001))},
            {"commit_prepare": pb.CommitPrepare(step=step, prepared=pb.PreparedWork(ui_json="{"))},
            {"commit_prepare": pb.CommitPrepare(prepared=pb.PreparedWork())},
            {"commit_prepare": pb.CommitPrepare(step=step, prepared=pb.PreparedWork(wake_at=Timestamp(seconds=-5)))},
            {"begin_mutation": pb.BeginMutation(step=step, mutation_id="7")},
            {"finish_mutation": pb.FinishMutation(step=step, mutation_id=run.delivery.run_id)},
            {"commit_handler": pb.CommitHandler(step=step, state=huge)},
            {"commit_handler": pb.CommitHandler(step=step, publishes=[pb.EventPublication(event_id="e")])},
        ):
            try:
                await run.ask(**body)
            except Refused as refused:
                self.told.append((next(iter(body)), refused.detail.field))
        await super().play(run)


async def test_bad_fields_of_phases_are_refused_by_name_and_the_run_goes_on(database_url: str) -> None:
    async with _serving(database_url) as server, playing(server.address, defined(acts()), kind=_Bad) as player:
        await player.until(lambda: player.played)
        assert isinstance(player, _Bad)
        assert [field for _, field in player.told] == [
            "peek_events.limit",
            "peek_events.cursor",
            "get_events.event_ids",
            "commit_prepare.prepared.data",
            "commit_prepare.prepared.title",
            "commit_prepare.prepared.ui_json",
            "commit_prepare.step.step_id",
            "commit_prepare.prepared.wake_at",
            "begin_mutation.mutation_id",
            "finish_mutation.verdict",
            "commit_handler.state",
            "commit_handler.publishes.topics",
        ]
        assert player.failures == []


async def test_many_automations_run_side_by_side_each_one_run_at_a_time(database_url: str) -> None:
    names = [f"flow-{number}" for number in range(12)]
    flows = [defined(polls(), acts(publishes=["row"]), acts("tell", ["row"]), name=name) for name in names]
    async with _serving(database_url) as server, playing(server.address, *flows, kind=_Flowing, slots=20) as player:
        await player.until(lambda: all(player.played.count((name, "tell")) >= 6 for name in names), within=60)
    assert player.most == 1
    assert player.failures == []
