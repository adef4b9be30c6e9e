"""Replays a stored history with today's code, without a server: the code gets the recorded results in their recorded
order, and no step body runs. Whatever it does differently is an error that shows both sides; changed inputs of steps
too. What it would do next, beyond the record, is told and not done.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from google.protobuf.message import Message

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.sdk.codec import Chain, Codec
from kagzi.sdk.definition import Workflow
from kagzi.sdk.errors import ConfigError, NondeterminismError
from kagzi.sdk.execution import Execution
from kagzi.sdk.failure import ErrorInfo
from kagzi.sdk.history import MOST_STEPS, Request
from kagzi.sdk.pending import Pending
from kagzi.sdk.residents import Residents
from kagzi.sdk.values import Values
from kagzi.testing import transcript
from kagzi.testing.transcript import History

O = TypeVar("O")  # noqa: E741 - a workflow's output

_ABSENT: Any = object()


@dataclass(frozen=True, slots=True)
class Replay(Generic[O]):
    """How far a history leads the code."""

    # "ended": the code returned or raised. "waiting": it waits for results that are not on record yet.
    # "new steps": it asks for steps that are not on record.
    outcome: Literal["ended", "waiting", "new steps"]
    # What it returned; the error that left it.
    output: O | None = None
    error: ErrorInfo | None = None
    # It ended to go on as a new run.
    continued: bool = False
    # Steps on record that it waits for, and steps that it asks for next.
    waiting: tuple[str, ...] = ()
    new: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether the code returned or raised."""
        return self.outcome == "ended"


def replay(
    workflow: Workflow[Any, O], history: History, *, input: Any = _ABSENT, codecs: Sequence[Codec] = ()
) -> Replay[O]:
    """Runs the code of a workflow against a history: what `kagzi.testing.history(handle)` made, the path of a file with
    that, or the steps of `handle.steps()`, then with the `input` of the run. Raises NondeterminismError with the
    recorded and the requested steps where they differ.
    """
    if not isinstance(workflow, Workflow):
        raise ConfigError(f"{workflow!r} is no workflow: put @workflow on the function and pass that.")
    namespace, delivery = transcript.read(history)
    if delivery.workflow_type not in ("", workflow.name):
        raise ConfigError(f"This is a history of {delivery.workflow_type!r}, not of {workflow.name!r}.")
    delivery.workflow_type = workflow.name
    chain = Chain(codecs)
    if input is not _ABSENT:
        values = Values(chain, namespace, workflow.name)
        delivery.input.CopyFrom(values.encode(input, workflow.input, "input"))
    elif workflow.takes_input and not delivery.HasField("input") and not delivery.run_id:
        raise ConfigError(
            f"Workflow {workflow.name!r} takes an input, which a list of steps does not hold: pass it, as "
            "replay(workflow, steps, input=…), or replay what `await kagzi.testing.history(handle)` gives."
        )
    if not delivery.seed:
        # Without the seed the hashes of inputs cannot be made again.
        for step in delivery.history:
            step.input_hash = 0
    strict = replace(workflow, strict_inputs=True)
    return _apart(lambda: _rehearse(_Rehearsal(delivery, strict, _Stage(namespace, chain))))


def _apart(work: Callable[[], Replay[O]]) -> Replay[O]:
    """Runs `work` as a plain callback of an event loop, which it needs: of one of its own, beside any that runs."""

    async def main() -> Replay[O]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Replay[O]] = loop.create_future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it is raised where `replay` was called
                done.set_exception(error)

        loop.call_soon(run)
        return await done

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    with ThreadPoolExecutor(1, "kagzi-replay") as thread:
        return thread.submit(contextvars.copy_context().run, asyncio.run, main()).result()


class _Stage:
    """A worker that takes whatever is sent and does nothing."""

    def __init__(self, namespace: str, codecs: Chain) -> None:
        self.namespace = namespace
        self.codecs = codecs
        # Never asked: no body runs.
        self.executor = Executor()
        self.in_place_us = 0
        self.residents = Residents(0)
        self.most_steps = MOST_STEPS

    def send(self, *_: object) -> None: ...

    def send_soon(self, *_: object) -> Callable[[], bool]:
        return lambda: True

    def may_begin(self, _: object) -> bool:
        return False

    def done(self, _: object) -> None: ...

    def workflow(self, _: str) -> None: ...


class _Rehearsal(Execution):
    """An execution that ends where its history does."""

    # What the code had asked for when it ended, or rested beyond its history.
    asked: tuple[Request, ...] = ()
    # The steps among them that had no result.
    open: tuple[str, ...] = ()
    # The operation it ended with.
    ending: tuple[str, Message] | None = None

    def _open_up(self, pending: Pending) -> None:
        """Whatever is not on record does not happen."""

    def _go_on(self) -> None:
        self._note()
        self.drop()

    def _finish(self, name: str, body: Message) -> None:
        self._note()
        self.ending = (name, body)
        super()._finish(name, body)

    def _note(self) -> None:
        # Before the code is closed: its cleanup may ask for more.
        self.asked = tuple(self.ledger.requests)
        self.open = tuple(self.agenda.open)


def _rehearse(run: _Rehearsal) -> Replay[Any]:
    run.begin()
    new = tuple(request.step_id for request in run.asked if request.record is None)
    match run.ending:
        case "suspend", pb.Suspend(parked_json=document):
            parked = json.loads(document)
            raise NondeterminismError(parked["message"], recorded=parked["recorded"], requested=parked["requested"])
        case None:
            waiting = tuple(step_id for step_id in run.open if step_id not in new)
            return Replay("new steps" if new else "waiting", waiting=waiting, new=new)
        case _, pb.Complete() as complete:
            output = complete.output if complete.HasField("output") else None
            return Replay("ended", output=run.values.decode(output, run.definition.output, "output"), new=new)
        case _, pb.Fail(failure=failure):
            error = ErrorInfo(failure.type, failure.message, failure.traceback)
            return Replay("ended", error=error, new=new)
        case _:
            return Replay("ended", continued=True, new=new)
