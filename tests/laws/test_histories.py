"""The limits on a history hold at the exact boundary, whoever numbers the steps; far from it nothing is counted."""

from __future__ import annotations

from typing import Any

import pytest

from kagzi.protocol.v1.common_pb2 import FUNCTION, ErrorDetail, Failure, Payload
from kagzi.protocol.v1.worker_pb2 import BeginStepResponse, Complete, StepCompleted, StepFailed, StepStarted
from kagzi.store import batch, forks, histories
from kagzi.store.operation import Kind, Operation, Outcome
from kagzi.store.rules import Rules
from tests.laws.operations import NAMESPACE, Run, new_id
from tests.laws.world import LEASE, World

# A share of 100 bytes for each of ten steps.
RULES = Rules(history_steps=10, history_bytes=1_000)


async def flush(world: World, *given: Operation) -> list[Any]:
    """Applies operations in one batch; the answers, or the codes of refusals."""
    await batch.flush(world.database, NAMESPACE, given, LEASE, 5.0, RULES)
    return [one.answer.code if isinstance(one.answer, ErrorDetail) else "taken" for one in given]


def completed(run: Run, position: int, size: int, *, chained: bool = True, step: str = "") -> Operation:
    """A result of so many bytes."""
    body = StepCompleted(
        step_id=step or f"s{position}",
        attempt_id=new_id(),
        attempt_number=1,
        position=position,
        completed_seq=position,
        kind=FUNCTION,
        output=Payload(data=b"x" * size),
    )
    return Operation(Kind.COMPLETE_STEP, NAMESPACE, run.run_id, body, token=run.token, chained=chained)


def failed(run: Run, position: int, size: int) -> Operation:
    body = StepFailed(
        step_id=f"s{position}",
        attempt_id=new_id(),
        attempt_number=1,
        position=position,
        completed_seq=position,
        kind=FUNCTION,
        failure=Failure(message="x" * size, non_retryable=True),
    )
    return Operation(Kind.FAIL_STEP, NAMESPACE, run.run_id, body, token=run.token, chained=True)


def ended(run: Run) -> Operation:
    operation = Operation(Kind.COMPLETE, NAMESPACE, run.run_id, Complete(), token=run.token, chained=True)
    operation.operation_id = new_id()
    return operation


async def standing(world: World, run: Run) -> str:
    status: str = await world.connection.fetchval(
        "select status from kagzi.workflow_runs where run_id = $1", run.run_id
    )
    return status


async def on_record(world: World, run: Run) -> int:
    count: int = await world.connection.fetchval("select count(*) from kagzi.step_runs where run_id = $1", run.run_id)
    return count


EXCEEDED = ErrorDetail.LIMIT_EXCEEDED
FELL = ErrorDetail.PREDECESSOR_REFUSED


@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "one by one"])
@pytest.mark.parametrize(
    "sizes",
    [[1_000], [600, 400], [100] * 10, [1] * 9 + [991], [901] + [11] * 9, [0, 1_000, 0]],
    ids=["one", "two", "even", "last", "first", "with empty ones"],
)
async def test_a_history_holds_exactly_its_bytes(world: World, sizes: list[int], together: bool) -> None:
    full, over = await world.running(), await world.running()
    steps = [completed(full, position, size) for position, size in enumerate(sizes, 1)]
    more = [completed(over, position, size) for position, size in enumerate(sizes, 1)]
    more[-1].body.output.data += b"x"
    if together:
        answers = await flush(world, *steps, ended(full), *more, ended(over))
    else:
        answers = [(await flush(world, one))[0] for one in (*steps, ended(full), *more[:-1])]
        answers += await flush(world, more[-1], ended(over))
    taken = len(sizes) + 1 + len(sizes) - 1
    assert answers[:-2] == ["taken"] * taken
    assert answers[-2:] == [EXCEEDED, FELL]
    assert await standing(world, full) == "COMPLETED"
    assert await standing(world, over) == "RUNNING"
    assert await on_record(world, over) == len(sizes) - 1


async def test_a_history_holds_exactly_its_steps(world: World) -> None:
    run = await world.running()
    assert await flush(world, *(completed(run, position, 1) for position in range(1, 11))) == ["taken"] * 10
    assert await flush(world, completed(run, 11, 1), ended(run)) == [EXCEEDED, FELL]
    assert await on_record(world, run) == 10


async def test_errors_count_as_results_do(world: World) -> None:
    run = await world.running()
    assert await flush(world, failed(run, 1, 500), completed(run, 2, 500)) == ["taken"] * 2
    assert await flush(world, failed(run, 3, 1)) == [EXCEEDED]


async def test_a_repeat_is_not_counted_twice(world: World) -> None:
    run = await world.running()
    large = completed(run, 1, 600)
    assert await flush(world, large) == ["taken"]
    for _ in range(3):
        assert await flush(world, large) == ["taken"]
    assert await flush(world, completed(run, 2, 400)) == ["taken"]
    assert await flush(world, completed(run, 3, 1)) == [EXCEEDED]


async def test_a_worker_that_lets_the_server_count_is_refused_at_the_same_boundary(world: World) -> None:
    run = await world.running()
    for number in range(10):
        body = StepStarted(step_id=f"s{number}", attempt_id=new_id(), kind=FUNCTION)
        begun = Operation(Kind.BEGIN_STEP, NAMESPACE, run.run_id, body, token=run.token)
        assert await flush(world, begun) == ["taken"]
        assert isinstance(begun.answer, BeginStepResponse)
        done = completed(run, 0, 100 if number else 50, chained=False, step=f"s{number}")
        done.body.attempt_id, done.body.completed_seq = body.attempt_id, 0
        assert await flush(world, done) == ["taken"]
    late = StepStarted(step_id="late", attempt_id=new_id(), kind=FUNCTION)
    begun = Operation(Kind.BEGIN_STEP, NAMESPACE, run.run_id, late, token=run.token)
    assert await flush(world, begun) == [EXCEEDED]
    assert await on_record(world, run) == 10
    # It was told, and can still end the run as it likes.
    alone = ended(run)
    alone.chained = False
    assert await flush(world, alone) == ["taken"]


async def test_far_from_the_limit_nothing_is_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def counts(*_: Any) -> Any:
        raise AssertionError("it was counted")

    monkeypatch.setattr(histories, "measure", counts)
    run = await world.running()
    for position in range(1, 10):
        assert await flush(world, completed(run, position, 100)) == ["taken"]
    excess = "select history_excess from kagzi.workflow_runs where run_id = $1"
    assert await world.connection.fetchval(excess, run.run_id) == 0


async def test_a_fork_brings_along_what_it_keeps(world: World) -> None:
    run = await world.running()
    await flush(world, completed(run, 1, 700), completed(run, 2, 1), ended(run))
    forked = Run(new_id(), "")
    await world.database.transact(
        lambda c: forks.fork(
            c, NAMESPACE, run.run_id, forked.run_id, "s2", Outcome(), outputs={"s1": Payload(data=b"x" * 900)}
        )
    )
    [claimed] = await world.claim()
    assert await flush(world, completed(claimed, 2, 100)) == ["taken"]
    assert await flush(world, completed(claimed, 3, 1)) == [EXCEEDED]
