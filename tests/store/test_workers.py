"""Workers and their leases: who is known, what a heartbeat renews, what is put back, and who loses a race."""

from __future__ import annotations

import asyncio

import pytest
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.store import roster, workers
from kagzi.store.errors import Refused
from kagzi.store.roster import Filter, ServedType
from tests.store import given

LEASE_MS = 30_000
INTERVAL_MS = 10_000
ORDER = ServedType("order", "", "hash-1")


async def register(
    connection: Connection, instance: str = "one", types: tuple[ServedType, ...] = (ORDER,), queue: str = "default"
) -> workers.Registered:
    return await workers.register(
        connection, "default", instance=instance, task_queue=queue, types=types, concurrency=4
    )


async def beat(connection: Connection, worker_id: str, *held: workers.Pair) -> workers.Heartbeat:
    async with connection.transaction():
        return await workers.heartbeat(
            connection, "default", worker_id, held, lease_ms=LEASE_MS, interval_ms=INTERVAL_MS
        )


async def hold(connection: Connection, worker_id: str, due: str = "5 s", **columns: object) -> workers.Pair:
    token = given.new_id()
    run_id = await given.run(connection, "RUNNING", due, claim_token=token, locked_by=worker_id, **columns)
    return run_id, token


async def set_offline(connection: Connection, worker_id: str) -> None:
    await connection.execute("update kagzi.workers set status = 'OFFLINE' where worker_id = $1", worker_id)


def refused_with(error: pytest.ExceptionInfo[Refused]) -> ErrorDetail.Code.ValueType:
    return error.value.detail.code


async def test_an_instance_that_registers_again_keeps_its_id_and_brings_its_new_types(
    connection: Connection,
) -> None:
    first = await register(connection)
    second = await register(connection, types=(ServedType("order", "2", "h2"), ServedType("ship", "", "h3")))
    other = await register(connection, instance="two")
    assert second.worker_id == first.worker_id != other.worker_id
    stored = await roster.get(connection, "default", first.worker_id)
    assert stored.types == (ServedType("order", "2", "h2"), ServedType("ship", "", "h3"))


async def test_two_registrations_of_one_instance_at_once_are_one_worker(
    connection: Connection, other: Connection
) -> None:
    async with connection.transaction():
        first = await register(connection)
        waiting = asyncio.ensure_future(register(other))
        await _until_waiting(connection)
    assert (await waiting).worker_id == first.worker_id


async def test_a_worker_that_was_offline_is_online_again_with_its_id(connection: Connection) -> None:
    first = await register(connection)
    await set_offline(connection, first.worker_id)
    again = await register(connection)
    assert (again.worker_id, again.status) == (first.worker_id, "ONLINE")


async def test_a_reconnect_does_not_undo_a_drain_but_a_goodbye_does(connection: Connection) -> None:
    first = await register(connection)
    await workers.drain(connection, "default", first.worker_id)
    await set_offline(connection, first.worker_id)
    assert (await register(connection)).status == "DRAINING"
    await workers.deregister(connection, "default", first.worker_id)
    again = await register(connection)
    stored = await roster.get(connection, "default", again.worker_id)
    assert (stored.status, stored.drain_requested_at, stored.deregistered_at) == ("ONLINE", None, None)


async def test_a_parked_run_is_released_by_another_definition_and_by_nothing_else(connection: Connection) -> None:
    parked = {"parked_hash": "hash-1", "waiting": '{"parked": true}'}
    run_id = await given.run(connection, "SLEEPING", "never", **parked)
    pinned = await given.run(connection, "SLEEPING", "never", version="9", **parked)
    elsewhere = await given.run(connection, "SLEEPING", "never", task_queue="slow", **parked)
    ship = await given.run(connection, "SLEEPING", "never", workflow_type="ship", **parked)
    waiting = await given.run(connection, "SLEEPING", "never")

    assert (await register(connection)).released == 0
    assert (await register(connection, types=(ServedType("order", "", ""),))).released == 0
    assert (await register(connection, types=(ServedType("order", "8", "hash-2"),))).released == 1

    released = await given.seen(connection, run_id)
    assert released["lease_s"] <= 0
    assert (released["status"], released["parked_hash"], released["waiting"]) == ("SLEEPING", None, None)
    for untouched in (pinned, elsewhere, ship, waiting):
        assert (await given.seen(connection, untouched))["lease_s"] is None


async def test_a_parked_run_that_somebody_has_locked_is_waited_for(connection: Connection, other: Connection) -> None:
    run_id = await given.run(connection, "SLEEPING", "never", parked_hash="old")
    async with other.transaction():
        await other.execute("update kagzi.workflow_runs set state_number = 1 where run_id = $1", run_id)
        waiting = asyncio.ensure_future(register(connection))
        await _until_waiting(other)
    assert (await waiting).released == 1
    assert (await given.seen(connection, run_id))["lease_s"] <= 0


async def test_parked_runs_are_released_a_bounded_number_at_a_time(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "RELEASED_AT_ONCE", 2)
    for _ in range(3):
        await given.run(connection, "SLEEPING", "never", parked_hash="old")
    registered = await register(connection)
    assert (registered.released, registered.more_parked) == (2, True)
    assert await workers.release_parked(connection, "default", "default", [ORDER]) == 1
    assert await workers.release_parked(connection, "default", "default", [ORDER]) == 0


async def test_a_heartbeat_sets_every_named_lease_anew_also_one_that_ran_out(connection: Connection) -> None:
    worker_id = (await register(connection)).worker_id
    held = await hold(connection, worker_id, "5 s")
    expired = await hold(connection, worker_id, "-60 s")
    answer = await beat(connection, worker_id, held, expired)
    assert answer.renewal == workers.Renewal()
    assert (answer.lease_until - answer.now).total_seconds() == LEASE_MS / 1000
    for run_id, token in (held, expired):
        row = await given.seen(connection, run_id)
        assert (row["status"], str(row["claim_token"])) == ("RUNNING", token)
        # Set, never added to: no named lease is longer than the others.
        assert LEASE_MS / 1000 - 5 < row["lease_s"] <= LEASE_MS / 1000


async def test_a_lease_is_renewed_by_its_token_alone(connection: Connection) -> None:
    worker_id = (await register(connection)).worker_id
    run_id, token = await hold(connection, worker_id, "25 s")
    stale = (run_id, given.new_id())
    unknown = (given.new_id(), given.new_id())
    answer = await beat(connection, worker_id, stale, unknown)
    assert set(answer.renewal.lost) == {stale, unknown}
    row = await given.seen(connection, run_id)
    assert (row["status"], str(row["claim_token"])) == ("RUNNING", token)
    assert row["lease_s"] < 26


async def test_a_lease_of_another_namespace_is_neither_renewed_nor_put_back(connection: Connection) -> None:
    worker_id = (await register(connection)).worker_id
    foreign = await hold(connection, worker_id, "-60 s", namespace="another")
    answer = await beat(connection, worker_id, foreign)
    assert answer.renewal.lost == (foreign,)
    assert (await given.seen(connection, foreign[0]))["status"] == "RUNNING"


async def test_a_run_given_back_by_its_own_token_is_ended_and_not_lost(connection: Connection) -> None:
    worker_id = (await register(connection)).worker_id
    token = given.new_id()
    done = await given.run(connection, "COMPLETED", last_token=token)
    taken = await given.run(connection, "RUNNING", last_token=token)
    answer = await beat(connection, worker_id, (done, token), (taken, token))
    assert set(answer.renewal.ended) == {(done, token), (taken, token)}
    assert answer.renewal.lost == ()


async def test_a_run_that_somebody_has_locked_is_busy_and_not_lost(connection: Connection, other: Connection) -> None:
    worker_id = (await register(connection)).worker_id
    locked = await hold(connection, worker_id)
    free = await hold(connection, worker_id)
    async with other.transaction():
        await other.execute(
            "select 1 from kagzi.workflow_runs where namespace = 'default' and run_id = $1 for no key update",
            locked[0],
        )
        answer = await beat(connection, worker_id, locked, free)
    assert answer.renewal == workers.Renewal(busy=(locked,))
    assert (await given.seen(connection, free[0]))["lease_s"] > 20
    assert (await given.seen(connection, locked[0]))["lease_s"] <= 5
    assert await workers.renew(connection, "default", [locked], lease_ms=LEASE_MS) == workers.Renewal()
    assert (await given.seen(connection, locked[0]))["lease_s"] > 20


async def test_a_run_that_somebody_claims_is_lost_once_the_claim_commits_and_not_before(
    connection: Connection, other: Connection
) -> None:
    worker_id = (await register(connection)).worker_id
    held = await hold(connection, worker_id, "-1 s")
    async with other.transaction():
        await other.execute(
            "update kagzi.workflow_runs set claim_token = $2, locked_by = $2,"
            " available_at = kagzi.now() + interval '30 s' where run_id = $1",
            held[0],
            given.new_id(),
        )
        assert (await beat(connection, worker_id, held)).renewal == workers.Renewal(busy=(held,))
    assert (await beat(connection, worker_id, held)).renewal == workers.Renewal(lost=(held,))


async def test_naming_one_run_twice_and_with_an_old_token_renews_it_once(connection: Connection) -> None:
    worker_id = (await register(connection)).worker_id
    held = await hold(connection, worker_id)
    stale = (held[0], given.new_id())
    answer = await beat(connection, worker_id, held, held, stale, stale)
    assert answer.renewal == workers.Renewal(lost=(stale,))


async def test_a_heartbeat_tells_of_cancels_and_drains(connection: Connection) -> None:
    worker_id = (await register(connection)).worker_id
    held = await hold(connection, worker_id)
    assert not (await beat(connection, worker_id, held)).should_drain
    await connection.execute("update kagzi.workflow_runs set cancel_requested_at = kagzi.now()")
    await workers.drain(connection, "default", worker_id)
    answer = await beat(connection, worker_id, held)
    assert answer.renewal.cancelled == (held[0],)
    assert answer.should_drain


@pytest.mark.parametrize("known", [True, False])
async def test_a_heartbeat_of_an_unknown_or_offline_worker_renews_nothing(connection: Connection, known: bool) -> None:
    worker_id = (await register(connection)).worker_id if known else given.new_id()
    await set_offline(connection, worker_id)
    held = await hold(connection, worker_id)
    with pytest.raises(Refused) as refusal:
        await beat(connection, worker_id, held)
    assert refused_with(refusal) == ErrorDetail.NOT_FOUND
    assert (await given.seen(connection, held[0]))["lease_s"] <= 5


async def test_what_a_heartbeat_does_not_name_is_put_back_once_its_lease_is_old(connection: Connection) -> None:
    worker_id = (await register(connection)).worker_id
    # Set 21 s and 19 s ago: more and less than two intervals.
    old = await hold(connection, worker_id, "9 s", task_queue="slow", crashes=2)
    young = await hold(connection, worker_id, "11 s")
    renamed = await hold(connection, worker_id, "9 s")
    foreign = await hold(connection, given.new_id(), "-9 s")
    answer = await beat(connection, worker_id, (renamed[0], given.new_id()))
    assert answer.put_back == {"slow", "default"}
    for run_id, _ in (old, renamed):
        row = await given.seen(connection, run_id)
        assert (row["status"], row["claim_token"], row["locked_by"]) == ("PENDING", None, None)
        assert row["lease_s"] <= 0
    assert (await given.seen(connection, old[0]))["crashes"] == 2
    assert (await given.seen(connection, young[0]))["status"] == "RUNNING"
    assert (await given.seen(connection, foreign[0]))["status"] == "RUNNING"


async def test_a_worker_that_comes_back_gets_only_what_it_names(connection: Connection) -> None:
    worker_id = (await register(connection)).worker_id
    held = await hold(connection, worker_id)
    forgotten = await hold(connection, worker_id, "29 s")
    renewal, queues = await workers.resume(connection, "default", worker_id, [held], lease_ms=LEASE_MS)
    assert (renewal, queues) == (workers.Renewal(), frozenset({"default"}))
    assert (await given.seen(connection, forgotten[0]))["status"] == "PENDING"
    assert (await given.seen(connection, held[0]))["status"] == "RUNNING"


async def test_a_goodbye_puts_everything_back_at_once_and_can_be_repeated(connection: Connection) -> None:
    worker_id = (await register(connection)).worker_id
    held = [await hold(connection, worker_id, "29 s") for _ in range(2)]
    gone = await workers.deregister(connection, "default", worker_id)
    assert gone == workers.Deregistered(2, 0, frozenset({"default"}))
    for run_id, _ in held:
        row = await given.seen(connection, run_id)
        assert (row["status"], row["claim_token"], row["crashes"]) == ("PENDING", None, 0)
    before = await roster.get(connection, "default", worker_id)
    assert before.status == "OFFLINE"
    assert await workers.deregister(connection, "default", worker_id) == workers.Deregistered(0, 0, frozenset())
    assert (await roster.get(connection, "default", worker_id)).deregistered_at == before.deregistered_at


async def test_a_goodbye_does_not_wait_for_a_locked_run_and_says_so(connection: Connection, other: Connection) -> None:
    worker_id = (await register(connection)).worker_id
    run_id, _ = await hold(connection, worker_id)
    async with other.transaction():
        await other.execute("update kagzi.workflow_runs set state_number = 1 where run_id = $1", run_id)
        assert (await workers.deregister(connection, "default", worker_id)).busy == 1
    assert (await workers.deregister(connection, "default", worker_id)).released == 1


async def test_draining_is_refused_for_who_is_gone_and_keeps_its_first_time(connection: Connection) -> None:
    worker_id = (await register(connection)).worker_id
    await hold(connection, worker_id)
    first = await workers.drain(connection, "default", worker_id)
    assert (first.status, first.running) == ("DRAINING", 1)
    second = await workers.drain(connection, "default", worker_id)
    assert second.drain_requested_at == first.drain_requested_at
    await workers.deregister(connection, "default", worker_id)
    with pytest.raises(Refused) as refusal:
        await workers.drain(connection, "default", worker_id)
    assert refused_with(refusal) == ErrorDetail.PRECONDITION_FAILED
    for action in (workers.drain, workers.deregister, roster.get):
        with pytest.raises(Refused) as refusal:
            await action(connection, "default", given.new_id())
        assert refused_with(refusal) == ErrorDetail.NOT_FOUND


async def test_workers_are_listed_newest_first_in_pages_and_by_filter(connection: Connection) -> None:
    ids = [(await register(connection, instance=f"w{number}")).worker_id for number in range(5)]
    await register(connection, instance="slow", queue="slow", types=(ServedType("ship"),))
    # Registered in one moment: the id decides.
    await connection.execute("update kagzi.workers set registered_at = kagzi.now() where task_queue = 'default'")
    await hold(connection, ids[0])
    await workers.drain(connection, "default", ids[1])

    default = Filter(task_queue="default")
    first = await roster.list_page(connection, "default", default, most=3)
    last = first[-1]
    rest = await roster.list_page(connection, "default", default, most=3, after=(last.registered_at, last.worker_id))
    assert [worker.worker_id for worker in (*first, *rest)] == sorted(ids, reverse=True)
    assert {worker.worker_id: worker.running for worker in (*first, *rest)} == {
        worker_id: int(worker_id == ids[0]) for worker_id in ids
    }

    async def found(wanted: Filter) -> list[str]:
        return [one.instance for one in await roster.list_page(connection, "default", wanted, most=10)]

    assert await found(Filter(statuses=["DRAINING"])) == ["w1"]
    assert await found(Filter(workflow_type="ship")) == ["slow"]
    assert await roster.list_page(connection, "another", Filter(), most=10) == []


async def test_beyond_what_is_counted_a_worker_holds_what_its_heartbeat_said(connection: Connection) -> None:
    worker_id = (await register(connection)).worker_id
    held = [await hold(connection, worker_id) for _ in range(3)]

    async def load(look_at: int) -> set[int]:
        [listed] = await roster.list_page(connection, "default", Filter(), most=1, look_at=look_at)
        return {listed.running, (await roster.get(connection, "default", worker_id, look_at=look_at)).running}

    assert await load(2) == {2}
    await beat(connection, worker_id, *held)
    assert await load(2) == await load(4) == {3}
    await hold(connection, worker_id)
    assert (await load(2), await load(roster.COUNTED)) == ({3}, {4})
    await workers.deregister(connection, "default", worker_id)
    assert await load(2) == {0}
    assert await roster.held_runs(connection, "default", worker_id, most=2, look_at=1) == []


async def test_held_runs_come_by_the_end_of_their_leases(connection: Connection) -> None:
    worker_id = (await register(connection)).worker_id
    later = await hold(connection, worker_id, "20 s", crashes=1)
    sooner = await hold(connection, worker_id, "10 s")
    held = await roster.held_runs(connection, "default", worker_id, most=10)
    assert [(run.run_id, run.crashes) for run in held] == [(sooner[0], 0), (later[0], 1)]


async def _until_waiting(connection: Connection) -> None:
    """Returns once somebody waits for a lock."""
    while not await connection.fetchval("select count(*) from pg_locks where not granted"):
        pass
