"""A worker of nothing but unary calls: it registers, polls, executes, sends heartbeats, drains and deregisters. It is
the model for workers in other languages, and the suite's other tests drive servers with it. Run as a program it serves
the workflow "echo" in one queue until SIGTERM: `python -m tests.conformance.worker ADDRESS QUEUE`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self

import grpc

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import ErrorDetail, Failure
from tests.conformance.contract import Contract, detail, patiently
from tests.conformance.execution import Cancelled, GivenBack, Run, StepFailed, encoded, new_id

Workflow = Callable[[Run], Awaitable[Any]]

_POLL_MS = 2_000


class Worker:
    """Serves one queue with `slots` runs at a time, while it is entered; then drains and says goodbye."""

    def __init__(
        self,
        contract: Contract,
        workflows: Mapping[str, Workflow],
        queue: str,
        *,
        namespace: str = "",
        slots: int = 1,
        version: str = "",
    ) -> None:
        self.worker_id = ""
        self.held: dict[str, Run] = {}
        self.drained = asyncio.Event()
        self._contract = contract
        self._workflows = workflows
        self._registration = pb.RegisterRequest(
            namespace=namespace,
            task_queue=queue,
            instance=new_id(),
            types=[pb.ServedType(name=name, version=version) for name in workflows],
            concurrency=slots,
        )
        self._slots = slots
        self._executions: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def register(self) -> pb.RegisterResponse:
        """Makes the worker known, or known again."""
        answer = await patiently(lambda: self._contract.workers.Register(self._registration))
        self.worker_id = answer.worker_id
        return answer

    async def __aenter__(self) -> Self:
        registered = await self.register()
        interval = registered.heartbeat_interval_ms / 1_000
        self._tasks = [asyncio.create_task(self._heartbeats(interval), name="heartbeats")]
        self._tasks += [asyncio.create_task(self._serve(), name=f"slot {number}") for number in range(self._slots)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drained.set()
        heartbeats, *slots = self._tasks
        done, _ = await asyncio.wait(slots, timeout=0 if error else 30)
        for task in (heartbeats, *slots):
            task.cancel()
        await asyncio.gather(heartbeats, *slots, return_exceptions=True)
        goodbye = pb.DeregisterRequest(namespace=self._registration.namespace, worker_id=self.worker_id)
        await patiently(lambda: self._contract.workers.Deregister(goodbye))
        for task in done:
            task.result()

    async def _serve(self) -> None:
        """One slot: a poll, an execution, and so on until the worker drains."""
        while not self.drained.is_set():
            task = await self._poll()
            if task is None:
                continue
            run = self.held[task.run_id] = Run(self._contract, task, self._registration.namespace)
            execution = self._executions[task.run_id] = asyncio.create_task(self._execute(run))
            try:
                await asyncio.wait({execution})
            finally:
                execution.cancel()
                del self.held[task.run_id], self._executions[task.run_id]
            if not execution.cancelled():
                execution.result()

    async def _poll(self) -> pb.Delivery | None:
        """The next run. A poll is cut short by a drain; a run that was on its way then comes back by itself."""
        request = pb.PollTaskRequest(namespace=self._registration.namespace, worker_id=self.worker_id, wait_ms=_POLL_MS)
        poll = asyncio.ensure_future(patiently(lambda: self._contract.workers.PollTask(request)))
        drained = asyncio.ensure_future(self.drained.wait())
        try:
            await asyncio.wait({poll, drained}, return_when=asyncio.FIRST_COMPLETED)
            if not poll.done():
                return None
            answer = poll.result()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
            await self.register()
            return None
        finally:
            poll.cancel()
            drained.cancel()
        return answer.task if answer.HasField("task") else None

    async def _execute(self, run: Run) -> None:
        """Every ending of a run."""
        workflow = self._workflows[run.task.workflow_type]
        try:
            try:
                output = await workflow(run)
            except Cancelled:
                await self._fail(run, Failure(type="Cancelled", message="as asked for"))
            except StepFailed as error:
                # Whether the step may be tried again says nothing about the whole.
                failure = Failure(type=error.failure.type, message=error.failure.message)
                await self._fail(run, failure, error.step_id)
            except grpc.aio.AioRpcError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a workflow raises is the failure of its run
                await self._fail(run, Failure(type=type(error).__name__, message=str(error)))
            else:
                body = pb.Complete(output=encoded(output), operation_id=new_id())
                request = pb.CompleteWorkflowRequest(namespace=run.namespace, run=run.held, complete=body)
                await patiently(lambda: self._contract.workers.CompleteWorkflow(request))
        except GivenBack:
            return
        except grpc.aio.AioRpcError as error:
            # Somebody else has the run, or it was terminated: nothing more is written for it.
            if detail(error).code != ErrorDetail.LEASE_LOST:
                raise

    async def _fail(self, run: Run, failure: Failure, step_id: str = "") -> None:
        body = pb.Fail(failure=failure, failed_step_id=step_id, operation_id=new_id())
        request = pb.FailWorkflowRequest(namespace=run.namespace, run=run.held, fail=body)
        await patiently(lambda: self._contract.workers.FailWorkflow(request))

    async def _heartbeats(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            await self.beat()

    async def beat(self) -> pb.HeartbeatResponse | None:
        """Renews the leases and heeds the answer; None when the server did not know the worker any more."""
        request = pb.HeartbeatRequest(
            namespace=self._registration.namespace,
            worker_id=self.worker_id,
            held=[run.held for run in self.held.values()],
        )
        try:
            answer = await patiently(lambda: self._contract.workers.Heartbeat(request))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
            await self.register()
            return None
        for run_id in answer.cancelled:
            if run_id in self.held:
                self.held[run_id].cancelled = True
        for lost in answer.lost:
            run = self.held.get(lost.run_id)
            if run is not None and run.held == lost:
                self._executions[lost.run_id].cancel()
        if answer.should_drain:
            self.drained.set()
        return answer


async def echo(run: Run) -> Any:
    """Gives back what it was given."""
    return run.input


async def _main(address: str, queue: str) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with Contract(address) as contract, Worker(contract, {"echo": echo}, queue) as worker:
        print(worker.worker_id, flush=True)  # noqa: T201 - whoever started it waits for this line
        with contextlib.suppress(asyncio.CancelledError):
            await stopped.wait()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("address", help="host:port of a server")
    arguments.add_argument("queue", help="the queue to serve")
    given = arguments.parse_args()
    asyncio.run(_main(given.address, given.queue))
