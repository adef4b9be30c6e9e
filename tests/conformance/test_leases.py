"""Leases: only the current token writes, a run comes back from a worker that is gone, and a heartbeat tells the
truth.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from kagzi.protocol.v1 import admin_pb2 as ad
from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import COMPLETED, FAILED, PENDING, RUNNING, ErrorDetail
from tests.conformance import specimens
from tests.conformance.contract import eventually, refused
from tests.conformance.execution import new_id
from tests.conformance.place import Place, held

pytestmark = pytest.mark.conformance


async def _seen(place: Place, run_id: str) -> tuple[Any, ...]:
    """Everything of a run that a caller can see."""
    steps = await place.contract.admin.ListSteps(
        ad.ListStepsRequest(namespace=place.namespace, run_id=run_id, include_superseded=True, include_outputs=True)
    )
    run = await place.get(run_id)
    # The current holder's heartbeats move this.
    run.ClearField("available_at")
    return run, steps


async def _all_refused(place: Place, old: pb.Held) -> None:
    requests = specimens.of_run(place, old)
    fenced = {
        method.name
        for method in pb.DESCRIPTOR.services_by_name["WorkerService"].methods
        if "run" in method.input_type.fields_by_name
    }
    assert set(requests) == fenced, "every call that carries a token is tried"
    before = await _seen(place, old.run_id)
    for name, request in requests.items():
        with refused(ErrorDetail.LEASE_LOST) as said:
            await getattr(place.contract.workers, name)(request)
        assert said.subject == old.run_id, name
    assert await _seen(place, old.run_id) == before, "nothing was written"


async def test_the_old_token_of_a_run_that_was_claimed_again_is_refused_in_every_call(place: Place) -> None:
    first, second = await place.hand(), await place.hand()
    old = held(await first.take(await place.start()))
    await first.deregister()
    new = held(await second.take(old.run_id))
    await _all_refused(place, old)
    assert (await second.beat(new, old)).lost == [old]
    assert await second.complete(new) == COMPLETED
    await _all_refused(place, old)
    await _all_refused(place, new)


async def test_the_token_of_a_run_that_was_given_back_is_refused_in_every_call(place: Place) -> None:
    worker = await place.hand()
    old = held(await worker.take(await place.start()))
    release = pb.ReleaseRequest(run=old, release=pb.Release(operation_id=new_id()))
    assert (await place.contract.workers.Release(release)).status == PENDING
    await _all_refused(place, old)
    assert await worker.complete(held(await worker.take(old.run_id))) == COMPLETED


async def test_a_token_that_never_was_and_one_of_another_run_are_refused(place: Place) -> None:
    worker = await place.hand()
    one = held(await worker.take(await place.start()))
    other = held(await worker.take(await place.start()))
    await _all_refused(place, pb.Held(run_id=one.run_id, claim_token=new_id()))
    await _all_refused(place, pb.Held(run_id=one.run_id, claim_token=other.claim_token))
    for run in (one, other):
        assert await worker.complete(run) == COMPLETED


async def test_the_run_of_a_silent_worker_is_running_elsewhere_after_its_lease(hasty: Place) -> None:
    silent, other = await hasty.hand(), await hasty.hand()
    task = await silent.take(await hasty.start())
    lease = (task.lease_until_us - task.now_us) / 1_000_000
    began = time.monotonic()
    again = await eventually(lambda: other.poll(wait_ms=1_000), within=lease * 3 + 10)
    assert again is not None
    assert again.run_id == task.run_id
    assert again.now_us >= task.lease_until_us, "not before the lease was over"
    assert time.monotonic() - began < (lease + 1) * 3
    await _all_refused(hasty, held(task))
    assert (await hasty.get(task.run_id)).crashes == 1
    await other.complete_step(held(again), "progress")
    assert (await hasty.get(task.run_id)).crashes == 0
    assert await other.complete(held(again)) == COMPLETED


async def test_a_lease_that_ran_out_and_was_taken_by_nobody_is_renewed_by_its_token(hasty: Place) -> None:
    worker = await hasty.hand()
    task = await worker.take(await hasty.start())

    async def over() -> bool:
        info = await hasty.contract.admin.GetServerInfo(ad.GetServerInfoRequest())
        return info.database_now.ToMicroseconds() > task.lease_until_us

    await eventually(over, within=60)
    beat = await worker.beat(held(task))
    assert not beat.lost
    assert beat.lease_until_us > beat.now_us
    assert await worker.complete(held(task)) == COMPLETED


async def test_heartbeats_keep_a_run_beyond_its_lease(hasty: Place) -> None:
    worker, other = await hasty.hand(), await hasty.hand()
    task = await worker.take(await hasty.start())
    lease = (task.lease_until_us - task.now_us) / 1_000_000
    until = time.monotonic() + lease * 1.4
    while time.monotonic() < until:
        beat = await worker.beat(held(task))
        assert not beat.lost
        await other.beat()
        assert await other.poll(wait_ms=0) is None, "nobody else gets it"
    assert await worker.complete(held(task)) == COMPLETED


async def test_a_run_that_heartbeats_do_not_name_is_put_back_with_no_crash_counted(hasty: Place) -> None:
    worker, other = await hasty.hand(), await hasty.hand()
    task = await worker.take(await hasty.start())

    async def unnamed() -> pb.Delivery | None:
        await worker.beat()
        return await other.poll(wait_ms=0)

    again = await eventually(unnamed, within=60)
    assert again is not None
    assert again.run_id == task.run_id
    assert (await hasty.get(task.run_id)).crashes == 0
    await _all_refused(hasty, held(task))
    await other.complete(held(again))


async def test_a_worker_that_leaves_puts_back_what_it_held_at_once(place: Place) -> None:
    first, second = await place.hand(), await place.hand()
    tasks = [await first.take(await place.start()) for _ in range(2)]
    assert await first.deregister() == 2
    for task in tasks:
        run = await place.get(task.run_id)
        assert (run.status, run.crashes, run.worker_id) == (PENDING, 0, "")
    for _ in tasks:
        await second.complete(held(await second.take()))
    with refused(ErrorDetail.NOT_FOUND, "worker_id"):
        await first.beat()
    with refused(ErrorDetail.NOT_FOUND, "worker_id"):
        await first.poll()


async def test_a_drained_worker_is_told_and_finishes_what_it_holds(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    waiting = await place.start()
    request = ad.DrainWorkerRequest(worker_id=worker.worker_id)
    drained = await place.contract.admin.DrainWorker(request)
    assert (drained.status, drained.running) == (ad.WORKER_DRAINING, 1)
    assert (await worker.beat(held(task))).should_drain
    assert await worker.poll(wait_ms=0) is None, "it takes nothing more"
    assert await worker.complete(held(task)) == COMPLETED
    assert (await place.contract.admin.DrainWorker(request)).status == ad.WORKER_DRAINING
    await worker.deregister()
    with refused(ErrorDetail.PRECONDITION_FAILED):
        await place.contract.admin.DrainWorker(request)
    other = await place.hand()
    await other.complete(held(await other.take(waiting)))


async def test_a_worker_drains_when_it_is_asked_to_and_leaves_the_rest_to_others(hasty: Place) -> None:
    async def echo(run: Any) -> Any:
        return run.input

    async with hasty.worker(echo) as worker:
        assert await hasty.result(await hasty.start(1)) == 1
        request = ad.DrainWorkerRequest(worker_id=worker.worker_id)
        await hasty.contract.admin.DrainWorker(request)

        async def drained() -> bool:
            return worker.drained.is_set()

        await eventually(drained)
    run_id = await hasty.start(2)
    async with hasty.worker(echo):
        assert await hasty.result(run_id) == 2


async def test_two_polls_never_get_the_same_run(place: Place) -> None:
    workers = [await place.hand() for _ in range(3)]
    run_ids = {await place.start() for _ in range(9)}
    seen: list[str] = []
    for turn in range(9):
        task = await workers[turn % 3].take()
        seen.append(task.run_id)
        assert await place.status(task.run_id) == RUNNING
    assert len(seen) == len(set(seen))
    assert set(seen) == run_ids
    assert await workers[0].poll(wait_ms=0) is None


async def test_a_worker_gets_one_run_at_a_time_of_those_that_took_workers_down(hasty: Place) -> None:
    run_ids = [await hasty.start() for _ in range(2)]

    async def due() -> bool:
        now = (await hasty.contract.admin.GetServerInfo(ad.GetServerInfoRequest())).database_now.ToMicroseconds()
        return all([(await hasty.get(run_id)).available_at.ToMicroseconds() < now for run_id in run_ids])

    for _ in range(2):
        silent = await hasty.hand()
        tasks = [await silent.take() for _ in run_ids]
        if tasks[0].lease_until_us - tasks[0].now_us > 5_000_000:
            pytest.skip("two leases of this server take too long")
        await eventually(due)
    worker, other = await hasty.hand(), await hasty.hand()
    first = await worker.take()
    assert await worker.poll(wait_ms=0) is None, "it may take down the worker that has it"
    second = await other.take()
    assert {first.run_id, second.run_id} == set(run_ids)
    assert await worker.complete(held(first)) == COMPLETED
    assert await other.complete(held(second)) == COMPLETED


async def test_a_run_that_keeps_losing_its_lease_is_set_aside_as_poisoned(hasty: Place) -> None:
    task = await (await hasty.hand()).take(await hasty.start())
    lease = (task.lease_until_us - task.now_us) / 1_000_000
    if lease > 5:
        pytest.skip("five leases of this server take too long")
    handed_out = 1
    run = await hasty.get(task.run_id)
    until = time.monotonic() + 15 * lease + 10
    while not run.HasField("finished_at") and time.monotonic() < until:
        # Another worker each time, for the one before is silent.
        again = await (await hasty.hand()).poll(wait_ms=500)
        handed_out += again is not None
        run = await hasty.get(task.run_id)
    assert (run.status, run.failure.type, run.crashes) == (FAILED, "Poisoned", 5)
    assert handed_out == 5
