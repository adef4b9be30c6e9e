"""The part of WorkflowService that repairs: retry, fork, resume, and saying what became of a step. Rare and each on
its own, so they go to the store directly; what they mean for others is announced after the commit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import uuid_utils
from asyncpg.connection import Connection

from kagzi.protocol.v1 import workflow_pb2 as pb
from kagzi.protocol.v1.workflow_pb2_grpc import WorkflowServiceServicer
from kagzi.server.announcer import Announcer
from kagzi.server.api import checks
from kagzi.store import forks, resolutions, rows, runs
from kagzi.store.database import Database
from kagzi.store.errors import invalid
from kagzi.store.operation import Outcome

Context = grpc.aio.ServicerContext[Any, Any]
T = TypeVar("T")

_REASON_BYTES = 2_000


class Repairs(WorkflowServiceServicer):
    """Starts runs again and lets stuck ones go on."""

    def __init__(self, database: Database, announcer: Announcer) -> None:
        self._database = database
        self._announcer = announcer

    async def RetryWorkflow(self, request: pb.RetryWorkflowRequest, context: Context) -> pb.RetryWorkflowResponse:
        namespace = checks.namespace(request.namespace)
        run_id = checks.uuid(request.run_id, "run_id")
        new_run_id = checks.uuid(request.new_run_id, "new_run_id")
        made = await self._transact(
            namespace, lambda c, outcome: forks.retry(c, namespace, run_id, new_run_id, outcome)
        )
        return pb.RetryWorkflowResponse(
            run_id=new_run_id, status=rows.RUN_STATUS[made.status], took_external_id=made.took_external_id
        )

    async def ForkWorkflow(self, request: pb.ForkWorkflowRequest, context: Context) -> pb.ForkWorkflowResponse:
        namespace = checks.namespace(request.namespace)
        run_id = checks.uuid(request.run_id, "run_id")
        new_run_id = checks.uuid(request.new_run_id, "new_run_id")
        step_id = checks.name(request.step_id, "step_id")
        outputs = {
            checks.name(name, "outputs"): checks.payload(output, "outputs") for name, output in request.outputs.items()
        }
        given = checks.payload(request.input, "input") if request.HasField("input") else None

        async def fork(connection: Connection, outcome: Outcome) -> forks.Forked:
            return await forks.fork(
                connection, namespace, run_id, new_run_id, step_id, outcome, outputs=outputs, input=given
            )

        made = await self._transact(namespace, fork)
        return pb.ForkWorkflowResponse(run_id=new_run_id, status=rows.RUN_STATUS[made.status])

    async def ResumeWorkflow(self, request: pb.ResumeWorkflowRequest, context: Context) -> pb.ResumeWorkflowResponse:
        namespace = checks.namespace(request.namespace)
        run_id = checks.uuid(request.run_id, "run_id")
        # Known by an id also when the store tries it again, its commit not having been answered.
        resume_id = checks.uuid(request.resume_id, "resume_id", required=False) or str(uuid_utils.uuid7())
        status, task_queue = await self._database.transact(lambda c: runs.resume(c, namespace, run_id, resume_id))
        self._announcer.due(namespace, task_queue)
        return pb.ResumeWorkflowResponse(status=rows.RUN_STATUS[status])

    async def ResolveStep(self, request: pb.ResolveStepRequest, context: Context) -> pb.ResolveStepResponse:
        namespace = checks.namespace(request.namespace)
        request.run_id = checks.uuid(request.run_id, "run_id")
        request.step_id = checks.name(request.step_id, "step_id")
        request.resolution_id = checks.uuid(request.resolution_id, "resolution_id", required=False)
        request.attempt_id = checks.uuid(request.attempt_id, "attempt_id", required=False)
        checks.enum(request.resolution, pb.ResolveStepRequest.Resolution, "resolution", required=True)
        request.reason = checks.text(request.reason, "reason", _REASON_BYTES)
        if request.HasField("result"):
            checks.payload(request.result, "result")
            if request.resolution != pb.ResolveStepRequest.APPLIED:
                raise invalid("result", "only a step that was APPLIED has a result")
        return await self._transact(namespace, lambda c, outcome: resolutions.resolve(c, namespace, request, outcome))

    async def _transact(self, namespace: str, work: Callable[[Connection, Outcome], Awaitable[T]]) -> T:
        """Runs `work` in one transaction and tells of its outcome once that is committed."""

        async def transaction(connection: Connection) -> tuple[T, Outcome]:
            outcome = Outcome()
            return await work(connection, outcome), outcome

        answer, outcome = await self._database.transact(transaction)
        self._announcer.announce(namespace, outcome)
        return answer
