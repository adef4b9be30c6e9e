"""Operations of one run apply in order, also inside one batch, although those of one kind share statements there. Any
batch leaves the same rows and answers as the same operations one by one, each in a transaction of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kagzi.protocol.v1.common_pb2 import ErrorDetail, RetryPolicy
from kagzi.store import batch, errors
from kagzi.store.operation import Operation, Slot
from tests.laws import operations
from tests.laws.operations import NAMESPACE, Run
from tests.laws.wishes import WISHES, Known, Wish, granted
from tests.laws.world import LEASE, World

TWIN = "twin"
# What is drawn once for each row, or differs by microseconds.
_OWN = {"namespace", "seed", "arrival", "waiting"}


async def test_a_batch_keeps_the_order_of_each_run(world: World) -> None:
    run = await world.running()
    failed = operations.fail_step(run, "charge", retry=RetryPolicy(initial_interval_ms=1))
    applied = [
        operations.start_step(run, "first", 2),
        operations.set_state(run, 1, '{"at": 1}'),
        failed,
        operations.complete_step(run, "charge", 1, attempt_number=2),
        operations.set_state(run, 2, '{"at": 2}'),
        operations.signal(run.run_id),
        operations.await_signal(run, position=3),
        operations.suspend(run, "receive-paid"),
        operations.cancel(run.run_id),
    ]
    await world.flush(*applied)
    assert not any(operation.refused for operation in applied)
    row = await world.row(run.run_id)
    assert (row["status"], row["state"], row["due_s"] <= 0) == ("SLEEPING", '{"at": 2}', True)
    assert {(step["step_id"], step["attempt_number"], step["status"]) for step in await world.steps(run.run_id)} == {
        ("first", 1, "RUNNING"),
        ("charge", 1, "FAILED"),
        ("charge", 2, "COMPLETED"),
        ("receive-paid", 1, "RUNNING"),
    }
    assert row["cancel_requested_at"] is not None


async def test_steps_that_the_server_numbers_are_numbered_in_their_order(world: World) -> None:
    run = await world.running()
    applied = [operations.complete_step(run, name, 0, completed_seq=0, attempt_number=0) for name in "abcde"]
    await world.flush(*applied)
    stored = {step["step_id"]: (step["position"], step["completed_seq"]) for step in await world.steps(run.run_id)}
    assert stored == {name: (number, number) for number, name in enumerate("abcde", 1)}


async def test_signals_of_one_batch_arrive_in_their_order(world: World) -> None:
    run = await world.running()
    sent = [operations.signal(run.run_id) for _ in range(50)]
    await world.flush(*sent)
    [delivery] = await _claimed_again(world, run)
    assert [fact.signal.signal_id for fact in delivery.facts] == [operation.body.signal_id for operation in sent]


async def _claimed_again(world: World, run: Run) -> list[Any]:
    await world.flush(operations.release(run))
    return await world.deliveries()


async def _begin(world: World, namespace: str, ids: Known) -> None:
    """Three held runs. They are no kin: between runs no order is promised."""
    for number in range(3):
        start = operations.start(
            ids("run", number),
            external_id=ids("external", number),
            retry=RetryPolicy(maximum_attempts=2),
        )
        start.slot = Slot(ids("worker"), ids("token", number, False))
        start.namespace = namespace
        await batch.flush(world.database, namespace, [start], LEASE, 5.0)


async def _one_by_one(world: World, applied: list[Operation]) -> None:
    fallen: set[tuple[str, str | None]] = set()
    for operation in applied:
        pair = (operation.run_id, operation.token)
        if operation.chained and pair in fallen:
            operation.answer = errors.predecessor_refused(operation.run_id)
            continue
        await batch.flush(world.database, NAMESPACE, [operation], LEASE, 5.0)
        if operation.chained and operation.refused:
            fallen.add(pair)


async def _rows(world: World, namespace: str, ids: Known) -> dict[str, list[dict[str, Any]]]:
    """What is stored for the drawn runs and their kin, without what no two transactions have in common."""
    found: dict[str, list[dict[str, Any]]] = {}
    names = {value: str(meaning) for meaning, value in ids.meanings.items()}
    for table, order in (
        ("workflow_runs", "external_id, run_id"),
        ("workflow_payloads", "run_id"),
        ("step_runs", "run_id, step_id, attempt_number"),
        ("signals", "run_id, arrival"),
    ):
        records = await world.connection.fetch(
            f"select * from kagzi.{table} where namespace = $1 and run_id = any ($2::uuid[]) order by {order}",  # noqa: S608
            namespace,
            list(names),
        )
        found[table] = [
            {name: _plain(name, value, names) for name, value in record.items() if name not in _OWN}
            for record in records
        ]
    return found


def _plain(name: str, value: Any, names: dict[str, str]) -> Any:
    if name.endswith("_at") and value is not None:
        return "infinity" if value.year == 9999 else "some time"
    if name.endswith(("_id", "_token", "_by")) or name in ("last_operation", "last_worker"):
        return names.get(str(value), None if value is None else "some id")
    return value


def _told(operation: Operation) -> Any:
    """An answer without its times."""
    if operation.answer is None:
        return None
    if isinstance(operation.answer, ErrorDetail):
        # In one batch the fence may refuse what one by one would not have been looked at.
        lost = operation.answer.code == ErrorDetail.LEASE_LOST
        return ErrorDetail.PREDECESSOR_REFUSED if lost and operation.chained else operation.answer.code
    plain = type(operation.answer)()
    plain.CopyFrom(operation.answer)  # type: ignore[union-attr, arg-type]
    for field, _ in list(plain.ListFields()):  # type: ignore[union-attr]
        if field.name.endswith(("_us", "_ms", "step", "signal", "facts", "number")):
            plain.ClearField(field.name)  # type: ignore[union-attr]
    return plain


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(wishes=st.lists(WISHES, min_size=2, max_size=12))
async def test_a_batch_does_what_its_operations_do_one_by_one(world: World, wishes: list[Wish]) -> None:
    await world.connection.execute("insert into kagzi.namespaces (namespace) values ($1) on conflict do nothing", TWIN)
    ids = Known()
    await _begin(world, NAMESPACE, ids)
    await _begin(world, TWIN, ids)
    alone = [granted(wish, ids) for wish in wishes]
    together = [replace(operation, namespace=TWIN) for operation in alone]
    await _one_by_one(world, alone)
    await batch.flush(world.database, TWIN, together, LEASE, 5.0)
    for wish, one, other in zip(wishes, alone, together, strict=True):
        assert _told(one) == _told(other), wish
    assert await _rows(world, NAMESPACE, ids) == await _rows(world, TWIN, ids)
