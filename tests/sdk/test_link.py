"""A worker's stream: what it says to a server, what it makes of the answers, and how it comes back."""

import time
import uuid
from collections.abc import Iterable

import grpc
import pytest

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import ErrorDetail, Payload, Step
from kagzi.sdk import link
from kagzi.sdk.errors import ServerError, Unauthorized
from tests.sdk.stage import (
    Caller,
    Crew,
    Recorder,
    ServerProcess,
    StandIn,
    completed,
    delivery,
    idle,
    on_shift,
    post,
    recording,
    serving,
    until,
)


def names(operations: Iterable[pb.Operation]) -> list[str]:
    return [operation.step_completed.step_id for operation in operations]


async def first_run(recorder: Recorder, crew: Crew) -> StandIn:
    await recorder.until(lambda: bool(recorder.hellos))
    recorder.say(pb.ConnectResponse(deliveries=[delivery()]))
    return await crew.run()


async def test_credit_is_given_for_every_slot_and_again_when_one_is_free() -> None:
    async with recording() as recorder, on_shift(post(recorder.address, concurrency=2)) as crew:
        await recorder.until(lambda: recorder.credit == 2)
        recorder.say(pb.ConnectResponse(deliveries=[delivery(), delivery()]))
        second = await crew.run(1)
        await recorder.until(lambda: sum(len(frame.delivered) for frame in recorder.frames) == 2)
        assert recorder.credit == 2
        second.finish()
        await recorder.until(lambda: recorder.credit == 3)


async def test_the_credit_of_a_run_that_is_over_travels_with_its_last_operation() -> None:
    async with recording() as recorder, on_shift(post(recorder.address, concurrency=1)) as crew:
        recorder.answers = False
        run = await first_run(recorder, crew)
        run.step("charge")
        await recorder.until(lambda: len(recorder.operations) == 1)
        assert recorder.credit == 1
        run.finish()
        await recorder.until(lambda: len(recorder.operations) == 2)
        assert recorder.credit == 2
        assert len(crew.shift.leases) == 1, "it is named in heartbeats until it is answered"
        recorder.say(pb.ConnectResponse(accepted=[operation.number for operation in recorder.operations]))
        await until(lambda: not crew.shift.leases)
        assert recorder.credit == 2


async def test_while_answers_stay_away_a_worker_holds_at_most_twice_its_slots() -> None:
    async with recording() as recorder, on_shift(post(recorder.address, concurrency=1)) as crew:
        recorder.answers = False
        (await first_run(recorder, crew)).finish()
        await recorder.until(lambda: recorder.credit == 2)
        recorder.say(pb.ConnectResponse(deliveries=[delivery()]))
        (await crew.run(1)).finish()
        await recorder.until(lambda: len(recorder.operations) == 2)
        assert recorder.credit == 2
        recorder.say(pb.ConnectResponse(accepted=[recorder.operations[0].number]))
        await recorder.until(lambda: recorder.credit == 3)


async def test_a_server_hands_over_as_many_runs_as_there_are_slots(database_url: str) -> None:
    async with serving(database_url) as server, Caller(server.address, database_url) as caller:
        async with on_shift(post(server.address, concurrency=2)) as crew:
            for _ in range(3):
                await caller.start(idle)
            await crew.run(1)
            assert len(await caller.fetch("select 1 from kagzi.workflow_runs where status = 'RUNNING'")) == 2
            crew.runs[0].finish()
            await crew.run(2)
            # Its place is free with its last operation, before that has its answer.
            await caller.until("select 1 from kagzi.workflow_runs where status = 'COMPLETED'")
        assert len(await caller.until("select 1 from kagzi.workflow_runs where status = 'PENDING'")) == 2


async def test_everything_sent_in_one_turn_travels_in_one_frame_and_order_is_kept() -> None:
    async with recording() as recorder, on_shift(post(recorder.address)) as crew:
        run = await first_run(recorder, crew)
        heard: list[str] = []
        for number in range(100):
            run.step(f"s{number}", lambda _, number=number: heard.append(f"s{number}"))  # type: ignore[misc]
        await recorder.until(lambda: len(recorder.operations) == 100)
        [frame] = [frame for frame in recorder.frames if frame.operations]
        assert names(frame.operations) == [f"s{number}" for number in range(100)]
        assert [operation.number for operation in frame.operations] == list(range(1, 101))
        run.finish()
        await until(lambda: heard == names(frame.operations))


async def test_many_runs_leave_in_halves_so_that_they_do_not_move_in_step() -> None:
    async with recording() as recorder, on_shift(post(recorder.address, concurrency=100)) as crew:
        await recorder.until(lambda: bool(recorder.hellos))
        recorder.say(pb.ConnectResponse(deliveries=[delivery() for _ in range(100)]))
        await crew.run(99)
        for run in crew.runs:
            run.step("first")
            run.step("second")
        await recorder.until(lambda: len(recorder.operations) == 200)
        assert [len(frame.operations) for frame in recorder.frames if frame.operations] == [100, 50, 50]
        assert names(recorder.operations) == ["first", "second"] * 100


async def test_a_frame_is_cut_at_a_thousand_operations() -> None:
    async with recording() as recorder, on_shift(post(recorder.address)) as crew:
        run = await first_run(recorder, crew)
        for number in range(2_500):
            run.step(str(number))
        await recorder.until(lambda: len(recorder.operations) == 2_500)
        assert [len(frame.operations) for frame in recorder.frames if frame.operations] == [1_000, 1_000, 500]


async def test_a_frame_is_cut_at_a_mebibyte_and_what_is_larger_travels_alone() -> None:
    async with recording() as recorder, on_shift(post(recorder.address)) as crew:
        run = await first_run(recorder, crew)
        for number, size in enumerate((400_000, 400_000, 400_000, 1_500_000, 10)):
            run.step(str(number), data=bytes(size))
        await recorder.until(lambda: len(recorder.operations) == 5)
        cut = [names(frame.operations) for frame in recorder.frames if frame.operations]
        assert cut == [["0", "1"], ["2"], ["3"], ["4"]]


async def test_what_is_sent_soon_leaves_before_the_next_operation_of_its_run() -> None:
    async with recording() as recorder, on_shift(post(recorder.address)) as crew:
        await recorder.until(lambda: bool(recorder.hellos))
        recorder.say(pb.ConnectResponse(deliveries=[delivery(), delivery()]))
        run, other = await crew.run(0), await crew.run(1)
        crew.shift.send_soon(run, "step_completed", lambda: completed("soon"))
        withdraw = crew.shift.send_soon(other, "step_completed", lambda: completed("withdrawn"))
        run.step("now")
        assert withdraw()
        other.step("other")
        await recorder.until(lambda: len(recorder.operations) == 3)
        assert names(recorder.operations) == ["soon", "now", "other"]
        assert not withdraw()


async def test_what_is_sent_soon_leaves_by_itself() -> None:
    async with recording() as recorder, on_shift(post(recorder.address)) as crew:
        run = await first_run(recorder, crew)
        withdraw = crew.shift.send_soon(run, "step_completed", lambda: completed("soon"))
        await recorder.until(lambda: names(recorder.operations) == ["soon"])
        assert not withdraw()


async def test_what_was_not_answered_comes_again_in_order_over_the_next_stream() -> None:
    async with recording() as recorder, on_shift(post(recorder.address)) as crew:
        recorder.answers = False
        run = await first_run(recorder, crew)
        heard: list[str] = []
        for name in ("a", "b", "c"):
            run.step(name, lambda _, name=name: heard.append(name))  # type: ignore[misc]
        await recorder.until(lambda: len(recorder.operations) == 3)
        recorder.say(pb.ConnectResponse(accepted=[recorder.operations[0].number]))
        recorder.say(None)
        await recorder.until(lambda: len(recorder.hellos) == 2)
        run.step("d", lambda _: heard.append("d"))
        await recorder.until(lambda: len(recorder.operations) == 6)
        assert names(recorder.operations[3:]) == ["b", "c", "d"]
        assert recorder.operations[3] == recorder.operations[1]
        assert recorder.hellos[1].held == [pb.Held(run_id=run.run_id, claim_token=run.token)]
        recorder.say(pb.ConnectResponse(accepted=[operation.number for operation in recorder.operations[3:]]))
        recorder.answers = True
        run.finish()
        await until(lambda: heard == ["a", "b", "c", "d"])


async def test_a_worker_goes_on_at_the_next_server_of_its_list() -> None:
    async with (
        recording() as first,
        recording() as second,
        on_shift(post(f"{first.address},{second.address}")) as crew,
    ):
        first.answers = False
        run = await first_run(first, crew)
        run.step("charge")
        await first.until(lambda: len(first.operations) == 1)
        first.refusal = grpc.StatusCode.UNAVAILABLE
        first.say(None)
        await second.until(lambda: names(second.operations) == ["charge"])
        assert second.hellos[0].worker == first.hellos[0].worker
        assert [held.claim_token for held in second.hellos[0].held] == [run.token]
        await second.until(lambda: second.credit == 2)


@pytest.mark.parametrize("code", [ErrorDetail.UNAVAILABLE, ErrorDetail.RESOURCE_EXHAUSTED])
async def test_what_a_server_cannot_write_for_now_is_sent_to_another(code: ErrorDetail.Code.ValueType) -> None:
    async with (
        recording() as first,
        recording() as second,
        on_shift(post(f"{first.address},{second.address}")) as crew,
    ):
        first.answers = False
        run = await first_run(first, crew)
        heard: list[pb.Answer | None] = []
        run.step("a", heard.append)
        run.step("b", heard.append)
        await first.until(lambda: len(first.operations) == 2)
        refusals = [
            pb.Answer(number=first.operations[0].number, refused=ErrorDetail(code=code)),
            pb.Answer(number=first.operations[1].number, refused=ErrorDetail(code=ErrorDetail.PREDECESSOR_REFUSED)),
        ]
        first.say(pb.ConnectResponse(answers=refusals))
        await second.until(lambda: names(second.operations) == ["a", "b"])
        run.step("c", heard.append)
        await second.until(lambda: len(second.operations) == 3)
        run.finish()
        await until(lambda: heard == [None, None, None])


async def test_a_refusal_reaches_who_sent_the_operation_and_a_lost_lease_drops_the_run() -> None:
    async with recording() as recorder, on_shift(post(recorder.address)) as crew:
        recorder.answers = False
        run = await first_run(recorder, crew)
        heard: list[pb.Answer | None] = []
        run.step("a", heard.append)
        run.step("b", heard.append)
        await recorder.until(lambda: len(recorder.operations) == 2)
        lost = pb.Answer(number=recorder.operations[0].number, refused=ErrorDetail(code=ErrorDetail.LEASE_LOST))
        recorder.say(pb.ConnectResponse(answers=[lost]))
        await recorder.until(lambda: recorder.credit == 4)
        assert heard == [lost]
        assert run.dropped
        run.step("c")
        recorder.say(None)
        await recorder.until(lambda: len(recorder.hellos) == 2)
        assert not recorder.hellos[1].held


async def test_notices_reach_the_run_they_are_for() -> None:
    async with recording() as recorder, on_shift(post(recorder.address)) as crew:
        run = await first_run(recorder, crew)
        held = pb.Held(run_id=run.run_id, claim_token=run.token)
        stranger = pb.Held(run_id=run.run_id, claim_token=str(uuid.uuid4()))
        fact = pb.Fact(child_ended=pb.ChildEnded(child_run_id="c"))
        for whose in (stranger, held):
            recorder.say(
                pb.ConnectResponse(
                    wakes=[pb.Wake(run=whose, facts=[fact])],
                    cancels=[pb.CancelNotice(run=whose, request=pb.CancelRequested(reason="why"))],
                )
            )
        run.step("meanwhile")
        await recorder.until(lambda: len(recorder.operations) == 1)
        recorder.say(pb.ConnectResponse(lease_lost=[held]))
        await recorder.until(lambda: recorder.credit == 4)
        assert run.facts == [fact]
        assert run.cancelled
        assert run.dropped


async def test_a_delivery_in_parts_is_put_together_and_acknowledged_once_it_is_whole() -> None:
    async with recording() as recorder, on_shift(post(recorder.address)) as crew:
        whole = delivery(input=Payload(data=b"7"), more=True, history=[Step(step_id="a")])
        part = pb.Delivery(run_id=whole.run_id, claim_token=whole.claim_token, history=[Step(step_id="b")], more=True)
        last = pb.Delivery(run_id=whole.run_id, claim_token=whole.claim_token, history=[Step(step_id="c")])
        await recorder.until(lambda: bool(recorder.hellos))
        recorder.say(pb.ConnectResponse(deliveries=[whole]))
        recorder.say(pb.ConnectResponse(deliveries=[part, delivery()]))
        await crew.run(0)
        await recorder.until(lambda: any(frame.delivered for frame in recorder.frames))
        assert len(crew.shift.leases) == 2
        recorder.say(pb.ConnectResponse(deliveries=[last]))
        run = await crew.run(1)
        assert run.run_id == whole.run_id
        assert [step.step_id for step in run.delivery.history] == ["a", "b", "c"]
        assert run.delivery.input.data == b"7"
        await recorder.until(
            lambda: recorder.frames[-1].delivered == [pb.Held(run_id=run.run_id, claim_token=run.token)]
        )
        assert recorder.credit == 3


async def test_what_did_not_arrive_whole_is_not_held_after_the_stream_ended() -> None:
    async with recording() as recorder, on_shift(post(recorder.address)) as crew:
        whole = await first_run(recorder, crew)
        recorder.say(pb.ConnectResponse(deliveries=[delivery(more=True)]))
        recorder.say(None)
        await recorder.until(lambda: len(recorder.hellos) == 2)
        assert [held.claim_token for held in recorder.hellos[1].held] == [whole.token]
        await recorder.until(lambda: len(crew.shift.leases) == 1)


async def test_a_history_of_several_megabytes_arrives_whole(database_url: str) -> None:
    async with serving(database_url) as server, Caller(server.address, database_url) as caller:
        await caller.start(idle)
        async with on_shift(post(server.address)) as crew:
            run = await crew.run()
            for position in range(1, 41):
                body = completed(f"s{position}", position.to_bytes() * 150_000, position)
                run.host.send(run, "step_completed", body)
            run.finish("release", pb.Release(operation_id=str(uuid.uuid4())))
            again = await crew.run(1)
        assert again.run_id == run.run_id
        assert [step.step_id for step in again.delivery.history] == [f"s{number}" for number in range(1, 41)]
        assert all(step.output.data == step.position.to_bytes() * 150_000 for step in again.delivery.history)


async def test_an_idle_stream_says_something_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_KEEP_ALIVE", 0.1)
    async with recording() as recorder, on_shift(post(recorder.address)):
        began = time.monotonic()
        await recorder.until(lambda: recorder.frames[1:4] == [pb.ConnectRequest()] * 3)
        assert time.monotonic() - began > 0.2


async def test_a_worker_waits_for_a_server_that_is_not_there_yet(database_url: str) -> None:
    server = ServerProcess(database_url)
    async with on_shift(post(server.address)) as crew:
        await crew.shift.link.tried.wait()
        assert not crew.shift.link.connected
        with server:
            async with Caller(server.address, database_url) as caller:
                await caller.start(idle)
                await crew.run()


async def test_the_first_hello_refused_for_good_ends_the_link() -> None:
    async with recording() as recorder:
        recorder.refusal = grpc.StatusCode.PERMISSION_DENIED
        async with on_shift(post(recorder.address)) as crew:
            with pytest.raises(Unauthorized):
                await crew.shift.link.run()


async def test_an_unknown_namespace_is_said_at_once(database_url: str) -> None:
    async with serving(database_url) as server, on_shift(post(server.address, namespace="nowhere")) as crew:
        with pytest.raises(ServerError, match="nowhere"):
            await crew.shift.link.run()


async def test_a_refusal_later_on_is_waited_out() -> None:
    async with recording() as recorder, on_shift(post(recorder.address)):
        await recorder.until(lambda: recorder.credit == 3)
        recorder.refusal = grpc.StatusCode.PERMISSION_DENIED
        recorder.say(None)
        await recorder.until(lambda: recorder.refused == 2)
        recorder.refusal = None
        await recorder.until(lambda: len(recorder.hellos) == 2)


async def test_the_key_travels_with_the_stream_and_the_heartbeats() -> None:
    async with recording() as recorder, on_shift(post(recorder.address, api_key="kz_1")):
        await recorder.until(lambda: bool(recorder.hellos and recorder.heartbeats))
        assert recorder.keys == {"Bearer kz_1"}
