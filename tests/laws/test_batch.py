"""Law 8, a batch is not a fate: one operation that cannot be stored fails alone, with every later operation of its own
run and token; everything else in its batch commits.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kagzi.protocol.v1.common_pb2 import REJECT, SIGNAL, ErrorDetail, Failure, Payload
from kagzi.store.operation import Operation
from tests.laws import operations
from tests.laws.operations import Run, new_id
from tests.laws.world import World

# What no check of the API can let through, but might one day.
UNSTORABLE: dict[str, Callable[[Run], Operation]] = {
    "a name with NUL": lambda run: operations.complete_step(run, "a\0b"),
    "an encoding with NUL": lambda run: operations.complete_step(run, "a", output=Payload(data=b"1", encoding="\0")),
    "a document that is no JSON": lambda run: operations.set_state(run, 1, "{"),
    "a number out of range": lambda run: operations.set_state(run, 2**32 - 1),
    "a time out of range": lambda run: operations.timer(run, "nap", 1, 2**62),
    "an id that is none": lambda run: operations.complete_step(run, "a", attempt_id="closed"),
    "a kind that is none": lambda run: operations.complete_step(run, "a", kind=99),
    "a child of no type": lambda run: operations.start_child(run, "a", workflow_type="\0"),
}
REFUSED: dict[str, Callable[[Run], Operation]] = {
    "another attempt of a step with a result": lambda run: operations.complete_step(run, "known", 7),
    "a signal that is not there": lambda run: operations.complete_step(run, "a", kind=SIGNAL, signal_id=new_id()),
    "a child whose name is taken": lambda run: operations.start_child(
        run, "a", external_id="taken", on_conflict=REJECT
    ),
}


def _codes(given: list[Operation]) -> list[str]:
    return [
        ErrorDetail.Code.Name(operation.answer.code) if isinstance(operation.answer, ErrorDetail) else "OK"
        for operation in given
    ]


@pytest.mark.parametrize("bad", UNSTORABLE.values(), ids=UNSTORABLE)
async def test_one_operation_that_cannot_be_stored_among_a_hundred_fails_alone(
    world: World, bad: Callable[[Run], Operation]
) -> None:
    runs = [await world.running() for _ in range(33)]
    sick = await world.running()
    given = [operations.complete_step(run, f"s{position}", position) for position in (1, 2, 3) for run in runs]
    given.insert(50, bad(sick))
    await world.flush(*given)
    assert [number for number, operation in enumerate(given) if operation.refused] == [50]
    assert await world.count("step_runs") == 99
    assert await world.steps(sick.run_id) == []


@pytest.mark.parametrize("bad", (UNSTORABLE | REFUSED).values(), ids=UNSTORABLE | REFUSED)
async def test_what_follows_a_refused_operation_of_its_run_falls_with_it_and_nothing_else_does(
    world: World, bad: Callable[[Run], Operation]
) -> None:
    await world.running(external_id="taken")
    sick, sound = await world.running(), await world.running()
    await world.flush(operations.complete_step(sick, "known", 7))
    given = [
        operations.complete_step(sick, "before", 8),
        operations.complete_step(sound, "one", 1),
        bad(sick),
        operations.complete_step(sick, "after", 9),
        operations.complete_step(sound, "two", 2),
        operations.signal(sick.run_id),
        operations.set_state(sick, 9),
        operations.complete(sick),
        operations.complete(sound),
    ]
    await world.flush(*given)
    codes = _codes(given)
    fell = "PREDECESSOR_REFUSED"
    assert codes == ["OK", "OK", codes[2], fell, "OK", "OK", fell, fell, "OK"]
    assert codes[2] not in ("OK", fell)
    assert [step["step_id"] for step in await world.steps(sick.run_id)] == ["known", "before"]
    row = await world.row(sick.run_id)
    assert (row["status"], row["state"]) == ("RUNNING", None)
    assert (await world.row(sound.run_id))["status"] == "COMPLETED"


async def test_an_earlier_operation_of_the_run_stands_whatever_kind_it_is_of(world: World) -> None:
    """Kinds share statements, so an earlier operation may be applied after a later one was looked at."""
    for first in (operations.start_step, operations.set_state, operations.complete_step):
        sick = await world.running()
        given = [first(sick), operations.complete_step(sick, "bad", 2, kind=SIGNAL, signal_id=new_id())]
        await world.flush(*given)
        assert _codes(given) == ["OK", "PRECONDITION_FAILED"]


async def test_other_tokens_of_the_run_are_unaffected(world: World) -> None:
    sick = await world.running()
    stranger = Run(sick.run_id, new_id())
    given = [
        operations.complete_step(stranger, "bad"),
        operations.complete_step(stranger, "worse"),
        operations.complete_step(sick, "good"),
        operations.complete(sick),
    ]
    await world.flush(*given)
    assert [operation.refused for operation in given] == [True, True, False, False]


async def test_operations_of_unary_callers_do_not_fall_with_each_other(world: World) -> None:
    sick = await world.running()
    given = [operations.complete_step(sick, "a\0b", 1), operations.complete_step(sick, "good", 2)]
    for operation in given:
        operation.chained = False
    await world.flush(*given)
    assert [operation.refused for operation in given] == [True, False]


async def test_a_refused_start_spoils_no_other_start(world: World) -> None:
    await world.start(external_id="taken")
    given = [operations.start(external_id=f"e{number}") for number in range(20)]
    given.insert(7, operations.start(external_id="taken", on_conflict=REJECT))
    given.insert(3, operations.start(workflow_type="a\0b"))
    await world.flush(*given)
    assert [number for number, operation in enumerate(given) if operation.refused] == [3, 8]
    assert await world.count("workflow_runs") == 21


async def test_a_refused_operation_leaves_nothing_of_itself(world: World) -> None:
    run = await world.running()
    sent = operations.signal(run.run_id)
    first = operations.complete_step(run, "charge")
    await world.flush(sent, first)
    before = await world.contents()
    taken = {"attempt_number": 1, "position": 1}
    given = [
        operations.complete_step(run, "charge", kind=SIGNAL, signal_id=sent.body.signal_id, **taken),
        operations.start_child(run, "charge", external_id="new"),
        operations.fail_step(run, "charge", failure=Failure(type="Late")),
    ]
    for operation in given:
        await world.flush(operation)
        assert operation.refused, operation.kind.name
        assert await world.contents() == before, operation.kind.name
    await world.flush(*(given := [operations.start_child(run, "charge", 1), operations.start_child(run, "ship", 2)]))
    assert _codes(given) == ["PRECONDITION_FAILED", "PREDECESSOR_REFUSED"]
    assert await world.contents() == before
