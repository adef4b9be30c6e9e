"""Operations drawn at random, by small numbers, so that those of one batch meet each other: the same steps, attempts,
signals and runs come up again and again. The same wish makes the same operation wherever it is granted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import strategies as st

from kagzi.protocol.v1.common_pb2 import SIGNAL, Failure
from kagzi.store.operation import Operation
from tests.laws import operations
from tests.laws.operations import Run, new_id

Ids = Callable[..., str]


class Known:
    """The same id for the same meaning."""

    def __init__(self) -> None:
        self.meanings: dict[tuple[Any, ...], str] = {}

    def __call__(self, *meaning: Any) -> str:
        return self.meanings.setdefault(meaning, new_id())


@dataclass(frozen=True, slots=True)
class Wish:
    """One operation."""

    kind: str
    run: int
    step: int
    attempt: int
    number: int
    # The token is nobody's.
    stranger: bool


def granted(wish: Wish, ids: Ids) -> Operation:
    """The operation."""
    run = Run(ids("run", wish.run), ids("token", wish.run, wish.stranger))
    if wish.stranger:
        # Nobody but its holder knows the ids a run has on record.
        ids = partial(ids, "stranger")
    operation = _MAKE[wish.kind](wish, run, ids)
    if operation.operation_id is not None:
        operation.operation_id = ids("operation", wish.kind, wish.run, wish.number)
    return operation


def _step(make: Callable[..., Operation]) -> Callable[[Wish, Run, Ids], Operation]:
    return lambda wish, run, ids: make(
        run,
        f"s{wish.step}",
        wish.step + 1,
        attempt_number=wish.attempt,
        attempt_id=ids("attempt", wish.run, wish.step, wish.attempt),
    )


def _attempt(make: Callable[..., Operation], *meaning: str) -> Callable[[Wish, Run, Ids], Operation]:
    """A unary operation on a step."""

    def made(wish: Wish, run: Run, ids: Ids) -> Operation:
        operation = make(run, f"s{wish.step}")
        operation.body.attempt_id = ids(*meaning, wish.run, wish.step, *([wish.attempt] * (meaning == ("attempt",))))
        return operation

    return made


def _child(make: Callable[..., Operation]) -> Callable[[Wish, Run, Ids], Operation]:
    def made(wish: Wish, run: Run, ids: Ids) -> Operation:
        operation = make(run, f"s{wish.step}")
        operation.body.position = wish.step + 1
        operation.body.attempt_id = ids("child", wish.run, wish.step)
        operation.body.child.run_id = ids("child run", wish.run, wish.step)
        return operation

    return made


def _timer(wish: Wish, run: Run, ids: Ids) -> Operation:
    operation = operations.timer(run, f"s{wish.step}", wish.step + 1)
    operation.body.attempt_id = ids("timer", wish.run, wish.step)
    return operation


def _receive(wish: Wish, run: Run, ids: Ids) -> Operation:
    return operations.complete_step(
        run,
        f"receive-n{wish.number}",
        wish.step + 1,
        kind=SIGNAL,
        attempt_id=ids("wait", wish.run, wish.number),
        signal_id=ids("signal", wish.run, wish.number),
    )


def _receive_signal(wish: Wish, run: Run, ids: Ids) -> Operation:
    operation = operations.receive_signal(run, f"n{wish.number}")
    operation.body.attempt_id = ids("wait", wish.run, wish.number)
    return operation


def _continue_as_new(wish: Wish, run: Run, ids: Ids) -> Operation:
    operation = operations.continue_as_new(run)
    operation.body.new_run_id = ids("successor", wish.run)
    return operation


_MAKE: dict[str, Callable[[Wish, Run, Ids], Operation]] = {
    "complete_step": _step(operations.complete_step),
    "fail_step": _step(operations.fail_step),
    "start_step": _step(operations.start_step),
    "await_signal": lambda wish, run, ids: operations.await_signal(
        run, f"n{wish.number}", wish.step + 1, attempt_id=ids("wait", wish.run, wish.number)
    ),
    "timer": _timer,
    "signal": lambda wish, run, ids: operations.signal(
        run.run_id, f"n{wish.number}", signal_id=ids("signal", wish.run, wish.number)
    ),
    "receive": _receive,
    "set_state": lambda wish, run, _: operations.set_state(run, wish.number, f'{{"n": {wish.number}}}'),
    "start_child": _child(operations.start_child),
    "await_child": _child(operations.await_child),
    "begin_step": _attempt(operations.begin_step, "attempt"),
    "receive_signal": _receive_signal,
    "sleep": _attempt(operations.sleep, "timer"),
    "fail_step_and_give_back": _attempt(operations.fail_step_and_give_back, "attempt"),
    "wait": lambda _, run, __: operations.wait(run),
    "suspend": lambda wish, run, _: operations.suspend(run, f"s{wish.step}", f"receive-n{wish.number}"),
    "release": lambda _, run, __: operations.release(run),
    "complete": lambda _, run, __: operations.complete(run),
    "fail": lambda wish, run, _: operations.fail(
        run, failure=Failure(type="X", non_retryable=wish.number == 0), failed_step_id=f"s{wish.step}"
    ),
    "continue_as_new": _continue_as_new,
    "cancel": lambda wish, run, _: operations.cancel(run.run_id, f"reason {wish.number}"),
    "terminate": lambda wish, run, _: operations.terminate(run.run_id, f"reason {wish.number}"),
}

WISHES = st.builds(
    Wish,
    kind=st.sampled_from(["complete_step", *_MAKE]),
    run=st.integers(0, 2),
    step=st.integers(0, 1),
    attempt=st.integers(1, 2),
    number=st.integers(0, 2),
    stranger=st.integers(0, 9).map(lambda number: number == 0),
)
