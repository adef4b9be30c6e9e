"""WorkerService, the unary part: the same operations as on the stream, one at a time, for workers in any language."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import STEP_COMPLETED
from kagzi.protocol.v1.worker_pb2_grpc import WorkerServiceServicer
from kagzi.server.api import checks, operations
from kagzi.server.api.streams import Streams
from kagzi.server.batcher import Batcher
from kagzi.server.dispatcher import Dispatcher
from kagzi.server.enrolment import Enrolment
from kagzi.store import rows
from kagzi.store.claims import Served
from kagzi.store.errors import invalid
from kagzi.store.operation import Kind, Operation

Context = grpc.aio.ServicerContext[Any, Any]
M = TypeVar("M", bound=Message)

_LONGEST_POLL_MS = 60_000


class Workers(WorkerServiceServicer):
    """Registers workers, hands them runs, and records what becomes of those."""

    def __init__(self, enrolment: Enrolment, batcher: Batcher, dispatcher: Dispatcher, streams: Streams) -> None:
        self._enrolment = enrolment
        self._batcher = batcher
        self._dispatcher = dispatcher
        self._streams = streams

    async def Register(self, request: pb.RegisterRequest, context: Context) -> pb.RegisterResponse:
        return (await self._enrolment.register(request)).response

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatResponse:
        return await self._enrolment.heartbeat(request)

    async def Deregister(self, request: pb.DeregisterRequest, context: Context) -> pb.DeregisterResponse:
        return await self._enrolment.deregister(request)

    async def PollTask(self, request: pb.PollTaskRequest, context: Context) -> pb.PollTaskResponse:
        namespace = checks.namespace(request.namespace)
        worker_id = checks.uuid(request.worker_id, "worker_id")
        wait_ms = checks.duration_ms(request.wait_ms, "wait_ms", maximum=_LONGEST_POLL_MS)
        # A poll that does not want to wait still gives one look the time it takes.
        seconds = max(wait_ms, 250) / 1_000
        served = await self._enrolment.served(namespace, worker_id)
        if served is None:
            # A worker that drains gets nothing, no sooner than it would if nothing were there.
            await asyncio.sleep(seconds)
            return pb.PollTaskResponse()
        poll = _Poll(worker_id, served, self._dispatcher)
        self._dispatcher.join(poll)
        try:
            return pb.PollTaskResponse(task=await poll.wait(seconds))
        except asyncio.CancelledError:
            poll.give_up()
            raise
        finally:
            self._dispatcher.leave(poll)

    async def BeginStep(self, request: pb.BeginStepRequest, context: Context) -> pb.BeginStepResponse:
        return await self._ask(request, Kind.BEGIN_STEP, request.step, "step", pb.BeginStepResponse)

    async def CompleteStep(self, request: pb.CompleteStepRequest, context: Context) -> pb.CompleteStepResponse:
        await self._ask(request, Kind.COMPLETE_STEP, request.step, "step", pb.EndAnswer)
        return pb.CompleteStepResponse(status=STEP_COMPLETED)

    async def FailStep(self, request: pb.FailStepRequest, context: Context) -> pb.FailStepResponse:
        operation = self._operation(request, Kind.FAIL_STEP_AND_GIVE_BACK, request.step, "step", request.operation_id)
        answer = await self._batcher.ask(operation)
        if isinstance(answer, pb.FailStepResponse):
            return answer
        if isinstance(answer, pb.StepFailedAnswer):
            # A repeat that was recognised by its attempt: the run was given back the first time, if it was.
            status = rows.RUN_STATUS["PENDING" if answer.will_retry else "RUNNING"]
            return pb.FailStepResponse(
                scheduled_retry=answer.will_retry,
                retry_at_us=answer.retry_at_us,
                delay_ms=answer.delay_ms,
                status=status,
            )
        assert isinstance(answer, pb.EndAnswer)
        return pb.FailStepResponse(scheduled_retry=True, retry_at_us=answer.available_at_us, status=answer.status)

    async def CompleteWorkflow(
        self, request: pb.CompleteWorkflowRequest, context: Context
    ) -> pb.CompleteWorkflowResponse:
        answer = await self._ask(request, Kind.COMPLETE, request.complete, "complete", pb.EndAnswer)
        return pb.CompleteWorkflowResponse(status=answer.status)

    async def FailWorkflow(self, request: pb.FailWorkflowRequest, context: Context) -> pb.FailWorkflowResponse:
        answer = await self._ask(request, Kind.FAIL, request.fail, "fail", pb.EndAnswer)
        response = pb.FailWorkflowResponse(status=answer.status)
        if answer.HasField("available_at_us"):
            response.available_at_us = answer.available_at_us
        return response

    async def Sleep(self, request: pb.SleepRequest, context: Context) -> pb.SleepResponse:
        checks.name(request.step_id, "step_id")
        request.attempt_id = checks.uuid(request.attempt_id, "attempt_id")
        if request.HasField("duration_ms"):
            checks.duration_ms(request.duration_ms, "duration_ms")
        elif not request.HasField("wake_at_us"):
            raise invalid("duration_ms", "a timer needs duration_ms or wake_at_us")
        operations.wake_at(request, "wake_at_us")
        operation = self._operation(request, Kind.SLEEP, request, "sleep", request.operation_id)
        answer = await self._batcher.ask(operation)
        if isinstance(answer, pb.SleepResponse):
            return answer
        assert isinstance(answer, pb.EndAnswer)
        return pb.SleepResponse(elapsed=False, wake_at_us=answer.available_at_us, status=answer.status)

    async def Suspend(self, request: pb.SuspendRequest, context: Context) -> pb.SuspendResponse:
        answer = await self._ask(request, Kind.SUSPEND, request.suspend, "suspend", pb.EndAnswer)
        response = pb.SuspendResponse(status=answer.status)
        if answer.HasField("available_at_us"):
            response.available_at_us = answer.available_at_us
        return response

    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseResponse:
        answer = await self._ask(request, Kind.RELEASE, request.release, "release", pb.EndAnswer)
        return pb.ReleaseResponse(status=answer.status)

    async def ReceiveSignal(self, request: pb.ReceiveSignalRequest, context: Context) -> pb.ReceiveSignalResponse:
        checks.name(request.step_id, "step_id")
        checks.name(request.name, "name")
        request.attempt_id = checks.uuid(request.attempt_id, "attempt_id")
        if request.HasField("timeout_ms"):
            checks.duration_ms(request.timeout_ms, "timeout_ms")
        return await self._ask(request, Kind.RECEIVE_SIGNAL, request, "receive", pb.ReceiveSignalResponse)

    async def StartChild(self, request: pb.StartChildRequest, context: Context) -> pb.StartChildResponse:
        return await self._ask(request, Kind.AWAIT_CHILD, request.start_child, "start_child", pb.StartChildResponse)

    async def SetState(self, request: pb.SetStateRequest, context: Context) -> pb.SetStateResponse:
        return await self._ask(request, Kind.SET_STATE, request.set_state, "set_state", pb.SetStateResponse)

    async def ContinueAsNew(self, request: pb.ContinueAsNewRequest, context: Context) -> pb.ContinueAsNewResponse:
        body = request.continue_as_new
        answer = await self._ask(request, Kind.CONTINUE_AS_NEW, body, "continue_as_new", pb.EndAnswer)
        return pb.ContinueAsNewResponse(status=answer.status, new_run_id=body.new_run_id)

    async def Connect(self, request_iterator: Any, context: Context) -> AsyncIterator[pb.ConnectResponse]:
        async for frame in self._streams.serve(request_iterator):
            yield frame

    async def _ask(self, request: Any, kind: Kind, body: Any, field: str, answer: type[M]) -> M:
        given = await self._batcher.ask(self._operation(request, kind, body, field))
        assert isinstance(given, answer), f"{kind.name} was answered with {type(given).__name__}"
        return given

    def _operation(self, request: Any, kind: Kind, body: Any, field: str, operation_id: str | None = None) -> Operation:
        namespace = checks.namespace(request.namespace)
        run = request.run
        return operations.of_worker(
            namespace, kind, run.run_id, run.claim_token, body, field=field, operation_id=operation_id
        )


class _Poll:
    """A waiting PollTask: a place for one run. What arrives when nobody waits any more is put back."""

    def __init__(self, worker_id: str, served: Served, dispatcher: Dispatcher) -> None:
        self.worker_id = worker_id
        self.served = served
        self.free = 1
        self.lends = False
        # Who asks for one run at a time is told its whole history.
        self.residents: dict[str, str] = {}
        self._dispatcher = dispatcher
        self._task: pb.Delivery | None = None
        self._arrived = asyncio.Event()
        self._over = False

    def deliver(self, delivery: pb.Delivery) -> None:
        self._task = delivery
        self._arrived.set()
        if self._over:
            self.give_up()

    async def wait(self, seconds: float) -> pb.Delivery | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        self._over = True
        return self._task

    def end(self) -> None:
        self.free = 0
        self._arrived.set()

    def give_up(self) -> None:
        """The caller went away: its run goes to somebody else."""
        self._over = True
        if self._task is not None:
            self._dispatcher.abandon(self.served.namespace, [(self._task.run_id, self._task.claim_token)])
