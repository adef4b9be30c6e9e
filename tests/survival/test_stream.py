"""A worker's stream seen from the server: credits, acknowledgements, what a new stream takes over and an old one loses.
Every end of a stream is a drop, and costs its worker nothing that it held.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

from kagzi import Client
from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.sdk import calls
from kagzi.server import app
from kagzi.server.api import stream
from kagzi.server.app import Server
from tests.sdk.serving import until
from tests.survival.line import TYPE, Line, awaiting, completed, held
from tests.survival.record import rows


async def run_of(url: str, run_id: str) -> tuple[Any, ...]:
    query = "select status, crashes, claim_token::text from kagzi.workflow_runs where run_id = $1"
    [run] = await rows(url, query, run_id)
    return run


async def end(line: Line, run: pb.Held) -> None:
    answer = await line.answer(await line.send(run, "complete", completed()))
    assert answer is None or not answer.HasField("refused")


async def test_every_delivery_costs_one_credit_and_a_new_stream_has_none(server: Server, client: Client) -> None:
    async with Line(server.address, TYPE) as line:
        await line.write(credit=1)
        first, second = await client.start(TYPE), await client.start(TYPE)
        assert (await line.delivery()).run_id == first.run_id
        await end(line, held(line.deliveries[0]))
        assert len(line.deliveries) == 1
        async with Line(server.address, TYPE, line.instance) as newer:
            await line.until(lambda: line.ended)
            third = await client.start(TYPE)
            assert {(await run.describe()).status for run in (second, third)} == {"PENDING"}
            assert newer.deliveries == []
            await newer.write(credit=1)
            assert (await newer.delivery()).run_id == second.run_id


async def test_a_delivery_that_is_not_acknowledged_in_time_is_put_back_with_no_crash(
    database_url: str, server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_DELIVERED_WITHIN", 0.2)
    handle = await client.start(TYPE)
    async with Line(server.address, TYPE) as line, Line(server.address, TYPE) as other:
        await line.write(credit=5)
        await line.delivery(acknowledge=False)
        await line.until(lambda: line.ended)
        await other.write(credit=1)
        again = await other.delivery()
        assert again.run_id == handle.run_id
        assert await run_of(database_url, handle.run_id) == ("RUNNING", 0, again.claim_token)


async def test_a_worker_that_does_not_say_what_it_has_gets_no_more_until_it_does(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_DELIVERED_WITHIN", 600.0)
    monkeypatch.setattr(stream, "_SILENCE", 600.0)
    async with Line(server.address, TYPE) as stopped:
        await stopped.write(credit=3)
        await client.start(TYPE)
        mine = await stopped.delivery(acknowledge=False)
        [place] = [place for queue in server.dispatcher._queues.values() for place in queue.places()]
        assert isinstance(place, stream.Stream)
        # A claim takes free places too, for a moment.
        await until(lambda: place._withheld == 2)
        async with Line(server.address, TYPE) as other:
            await other.write(credit=1)
            handle = await client.start(TYPE)
            assert (await other.delivery()).run_id == handle.run_id
            waiting = await client.start(TYPE)
            assert (await waiting.describe()).status == "PENDING"
            await stopped.write(delivered=[held(mine)])
            assert (await stopped.delivery(2)).run_id == waiting.run_id
        await until(lambda: (place.free, place._withheld) == (1, 0))


async def test_a_run_whose_acknowledgement_was_lost_with_its_stream_stays_with_the_worker_that_names_it(
    database_url: str, server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_DELIVERED_WITHIN", 0.3)
    handle, other = await client.start(TYPE), await client.start(TYPE)
    async with Line(server.address, TYPE) as line:
        await line.write(credit=2)
        mine = await line.delivery(acknowledge=False)
        await line.until(lambda: len(line.deliveries) == 2)
    async with Line(server.address, TYPE, line.instance, (held(mine),)) as newer:
        # What it does not name goes to whoever has room, and by then the first one's time is over.
        await newer.write(credit=1)
        assert (await newer.delivery()).run_id == other.run_id
        await until(lambda: not server.dispatcher._timers)
        await end(newer, held(mine))
    assert (await handle.describe()).status == "COMPLETED"


@pytest.mark.parametrize(("lease", "patience"), [(2, 0.5), (8, 2.0), (30, 5.0), (600, 5.0)])
def test_a_worker_whose_stream_ended_has_a_part_of_its_lease_to_say_what_it_has(lease: int, patience: float) -> None:
    run = stream._Undelivered("run", 0.0, time.monotonic() + 600, 1, 7, 7 + lease * 1_000_000)
    assert run.patience == patience


async def test_a_silent_stream_is_closed_and_its_credits_are_void(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_SILENCE", 0.3)
    async with Line(server.address, TYPE) as line:
        await line.write(credit=5)
        await line.until(lambda: line.ended)
        handle = await client.start(TYPE)
        assert (await handle.describe()).status == "PENDING"
        assert line.deliveries == []


async def test_an_older_stream_of_a_worker_is_not_heard_any_more(server: Server, client: Client) -> None:
    async with Line(server.address, TYPE) as older, Line(server.address, TYPE, older.instance) as newer:
        await older.until(lambda: older.ended)
        await client.start(TYPE)
        assert newer.deliveries == []
        await newer.write(credit=1)
        await newer.delivery()
        assert older.deliveries == []


async def test_answers_name_the_numbers_of_their_operations(server: Server, client: Client) -> None:
    await client.start(TYPE)
    async with Line(server.address, TYPE) as line:
        await line.write(credit=1)
        run = held(await line.delivery())
        stranger = pb.Held(run_id=run.run_id, claim_token=str(uuid.uuid4()))
        refused = await line.send(stranger, "complete", completed())
        accepted = await line.send(run, "set_state", pb.SetState(state_json="{}", number=1))
        assert await line.answer(accepted) is None
        answer = await line.answer(refused)
        assert answer is not None
        assert answer.refused.code == ErrorDetail.LEASE_LOST


async def test_waits_are_answered_when_met_and_later_facts_are_told(server: Server, client: Client) -> None:
    handle = await client.start(TYPE)
    async with Line(server.address, TYPE) as line:
        await line.write(credit=1)
        run = held(await line.delivery())
        for position, name in enumerate(("early", "late"), 1):
            await line.send(run, "step_started", awaiting(name, position))
        await handle.signal("early", 1)
        answer = await line.answer(await line.send(run, "wait", pb.Wait(step_ids=["early", "late"])))
        # Told with the answer, or before: the run is held here.
        met = [*(answer.wait.facts if answer is not None else ()), *line.facts]
        assert [fact.signal.name for fact in met] == ["early"]
        await handle.signal("late", 2)
        await line.until(lambda: "late" in [fact.signal.name for fact in line.facts])


def test_only_what_writes_for_a_run_carries_a_token() -> None:
    assert "claim_token" in pb.Operation.DESCRIPTOR.fields_by_name
    for message in (pb.Hello, pb.ConnectRequest, pb.ConnectResponse):
        assert "claim_token" not in message.DESCRIPTOR.fields_by_name


def test_a_channel_comes_back_soon_and_pings_no_more_often_than_a_server_allows() -> None:
    ours, theirs = dict(calls.OPTIONS), dict(app.OPTIONS)
    assert ours["grpc.max_reconnect_backoff_ms"] == 1_000
    for options in (ours, theirs):
        # What ends a connection is the timeout of pings; the other two decide when there is one.
        assert options["grpc.keepalive_time_ms"] + options["grpc.http2.ping_timeout_ms"] == 15_000
        assert options["grpc.keepalive_timeout_ms"] == options["grpc.http2.ping_timeout_ms"]
        assert options["grpc.keepalive_permit_without_calls"] == 1
    assert theirs["grpc.http2.min_ping_interval_without_data_ms"] < ours["grpc.keepalive_time_ms"]
