"""WorkflowService: what a client does with runs. Each method checks its request, hands one operation to the batcher or
one read to the store, and answers; errors are mapped by the interceptor.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import uuid_utils

from kagzi.protocol.v1 import workflow_pb2 as pb
from kagzi.protocol.v1.common_pb2 import Dedupe, ErrorDetail, OnConflict, RunStatus
from kagzi.server.api import checks
from kagzi.server.api.repairs import Repairs
from kagzi.server.batcher import Batcher
from kagzi.server.watchers import Watchers
from kagzi.store import namespaces, rows, runs, signals
from kagzi.store.database import Database
from kagzi.store.errors import Refused, invalid
from kagzi.store.operation import Kind, Operation
from kagzi.store.searches import Key, Wanted, search

Context = grpc.aio.ServicerContext[Any, Any]

DEFAULT_QUEUE = "default"
# How long starts that travelled together wait for one that waits for somebody's open transaction.
_TOGETHER_SECS = 0.25


class Workflows(Repairs):
    """Starts, shows and changes runs."""

    def __init__(self, database: Database, batcher: Batcher, watchers: Watchers) -> None:
        super().__init__(database, batcher.announcer)
        self._batcher = batcher
        self._watchers = watchers

    async def StartWorkflow(self, request: pb.StartWorkflowRequest, context: Context) -> pb.StartWorkflowResponse:
        namespace = checks.namespace(request.namespace)
        answer = await self._batcher.ask(start_operation(namespace, request))
        assert isinstance(answer, pb.StartWorkflowResponse)
        return answer

    async def StartWorkflows(self, request: pb.StartWorkflowsRequest, context: Context) -> pb.StartWorkflowsResponse:
        namespace = checks.namespace(request.namespace)
        if len(request.starts) > checks.STARTS:
            raise checks.exceeded(
                "starts", f"holds {len(request.starts)} starts; at most {checks.STARTS} travel together"
            )
        if not request.starts:
            await self._database.read(lambda c: namespaces.get(c, namespace))
        starts = [_operation(namespace, start) for start in request.starts]
        await self._batcher.ask_all([start for start in starts if isinstance(start, Operation)], _TOGETHER_SECS)
        return pb.StartWorkflowsResponse(results=map(_result, starts))

    async def GetWorkflow(self, request: pb.GetWorkflowRequest, context: Context) -> pb.GetWorkflowResponse:
        namespace = checks.namespace(request.namespace)
        run_id = checks.uuid(request.run_id, "run_id")
        return pb.GetWorkflowResponse(run=await self._database.read(lambda c: runs.get(c, namespace, run_id)))

    async def GetWorkflowByExternalId(
        self, request: pb.GetWorkflowByExternalIdRequest, context: Context
    ) -> pb.GetWorkflowResponse:
        namespace = checks.namespace(request.namespace)
        external_id = checks.name(request.external_id, "external_id")
        run = await self._database.read(lambda c: runs.get_by_external_id(c, namespace, external_id))
        return pb.GetWorkflowResponse(run=run)

    async def ListWorkflows(self, request: pb.ListWorkflowsRequest, context: Context) -> pb.ListWorkflowsResponse:
        namespace = checks.namespace(request.namespace)
        scope = checks.scope(request, namespace)
        page = checks.page(request.page_size, request.page_token, scope)
        filters = _filters(request)
        after = page.key(checks.moment_and_id, None)
        if checks.look_at(request.look_at):
            return await self._search(request, namespace, page, scope)

        async def read(connection: Any) -> list[pb.WorkflowRun]:
            await namespaces.get(connection, namespace)
            return await runs.list_(
                connection,
                namespace,
                page.size + 1,
                after_created_at=after[0] if after else None,
                after_run_id=after[1] if after else None,
                **filters,
            )

        found = await self._database.read(read)
        token = ""
        if len(found) > page.size:
            found = found[: page.size]
            token = checks.page_token(scope, (found[-1].created_at.ToMicroseconds(), found[-1].run_id))
        return pb.ListWorkflowsResponse(runs=found, next_page_token=token)

    async def _search(
        self, request: pb.ListWorkflowsRequest, namespace: str, page: checks.Page, scope: str
    ) -> pb.ListWorkflowsResponse:
        """A page of bounded cost."""
        wanted = Wanted(**_filters(request))
        after = page.key(checks.moment_and_id, None)

        async def read(connection: Any) -> tuple[list[pb.WorkflowRun], Key | None]:
            told = await search(connection, namespace, wanted, count=page.size, look_at=request.look_at, after=after)
            if not told[0]:
                await namespaces.get(connection, namespace)
            return told

        found, rest = await self._database.read(read)
        token = "" if rest is None else checks.page_token(scope, (rows.microseconds(rest[0]), rest[1]))
        return pb.ListWorkflowsResponse(runs=found, next_page_token=token)

    async def CancelWorkflow(self, request: pb.CancelWorkflowRequest, context: Context) -> pb.CancelWorkflowResponse:
        request.reason = checks.text(request.reason, "reason", 2_000)
        answer = await self._batcher.ask(_on_run(Kind.CANCEL, request))
        assert isinstance(answer, pb.CancelWorkflowResponse)
        return answer

    async def TerminateWorkflow(
        self, request: pb.TerminateWorkflowRequest, context: Context
    ) -> pb.TerminateWorkflowResponse:
        request.reason = checks.text(request.reason, "reason", 2_000)
        answer = await self._batcher.ask(_on_run(Kind.TERMINATE, request))
        assert isinstance(answer, pb.TerminateWorkflowResponse)
        return answer

    async def SignalWorkflow(self, request: pb.SignalWorkflowRequest, context: Context) -> pb.SignalWorkflowResponse:
        namespace = checks.namespace(request.namespace)
        request.name = checks.name(request.name, "name")
        if request.HasField("payload"):
            checks.payload(request.payload, "payload")
        request.signal_id = checks.uuid(request.signal_id, "signal_id", required=False) or str(uuid_utils.uuid7())
        run_id = await self._signalled(namespace, request)
        while True:
            try:
                answer = await self._batcher.ask(Operation(Kind.SIGNAL, namespace, run_id, request))
            except Refused as refused:
                before, run_id = run_id, await self._signalled(namespace, request)
                if refused.detail.code != ErrorDetail.PRECONDITION_FAILED or run_id == before:
                    raise
                # It continued as new while the signal was on its way, which goes on to where it is now.
            else:
                assert isinstance(answer, pb.SignalWorkflowResponse)
                return answer

    async def _signalled(self, namespace: str, request: pb.SignalWorkflowRequest) -> str:
        """The run a signal is for: where a continued one went on, or the one with the external id."""
        if request.external_id and request.run_id:
            raise invalid("external_id", "name the run by run_id or by external_id, not by both")
        if request.external_id:
            external_id = checks.name(request.external_id, "external_id")
            return await self._database.read(lambda c: runs.find(c, namespace, external_id))
        run_id = checks.uuid(request.run_id, "run_id")
        return await self._database.read(lambda c: signals.final_run(c, namespace, run_id)) or run_id

    async def WatchWorkflows(self, request_iterator: Any, context: Context) -> AsyncIterator[pb.WatchWorkflowsResponse]:
        # The client hears at once that somebody serves it; the first end may be days away.
        await context.send_initial_metadata(())
        async for frame in self._watchers.serve(request_iterator):
            yield frame


def _operation(namespace: str, request: pb.StartWorkflowRequest) -> Operation | Refused:
    try:
        if request.namespace not in ("", namespace):
            raise invalid("namespace", f"must be {namespace!r}, as in the request around it", request.namespace)
        return start_operation(namespace, request)
    except Refused as refused:
        return refused


def _result(start: Operation | Refused) -> pb.StartWorkflowsResponse.Result:
    """One of many starts: refused alone."""
    answer = start.detail if isinstance(start, Refused) else start.answer
    if isinstance(answer, ErrorDetail):
        return pb.StartWorkflowsResponse.Result(error=answer)
    if isinstance(answer, pb.StartWorkflowResponse):
        return pb.StartWorkflowsResponse.Result(started=answer)
    # Its operation goes on; only nobody listens any more.
    return _keeps_waiting()


def _keeps_waiting() -> pb.StartWorkflowsResponse.Result:
    """The answer to a start that is still to come: whoever sends it again is told what became of it."""
    message = "it waits for a transaction that somebody has open and that uses the same id: ask again with its run id"
    return pb.StartWorkflowsResponse.Result(
        error=ErrorDetail(code=ErrorDetail.RESOURCE_EXHAUSTED, message=message, retry_after_ms=500)
    )


def start_operation(namespace: str, request: pb.StartWorkflowRequest) -> Operation:
    """The operation that starts a run; checks and completes the request in place."""
    request.workflow_type = checks.name(request.workflow_type, "workflow_type")
    request.task_queue = checks.name(request.task_queue, "task_queue", default=DEFAULT_QUEUE)
    if request.version:
        checks.name(request.version, "version")
    if request.external_id:
        checks.name(request.external_id, "external_id")
    request.run_id = checks.uuid(request.run_id, "run_id", required=False) or str(uuid_utils.uuid7())
    if request.HasField("input"):
        checks.payload(request.input, "input")
    _check_times(request)
    if request.HasField("priority") and not 0 <= request.priority <= 4:
        raise invalid("priority", f"must be 0 to 4, got {request.priority}")
    if request.HasField("retry"):
        checks.retry(request.retry, "retry")
    if request.labels:
        checks.labels(request.labels, "labels")
    checks.enum(request.on_conflict, OnConflict, "on_conflict")
    checks.enum(request.dedupe, Dedupe, "dedupe")
    if request.parent_run_id:
        request.parent_run_id = checks.uuid(request.parent_run_id, "parent_run_id")
    if request.parent_step_attempt_id:
        attempt = checks.uuid(request.parent_step_attempt_id, "parent_step_attempt_id")
        request.parent_step_attempt_id = attempt
    return Operation(Kind.START, namespace, request.run_id, request)


def _check_times(request: pb.StartWorkflowRequest) -> None:
    if request.HasField("delay_ms"):
        checks.duration_ms(request.delay_ms, "delay_ms")
        if request.HasField("start_at"):
            raise invalid("start_at", "say delay_ms or start_at, not both")
    if request.HasField("start_at"):
        checks.timestamp(request.start_at, "start_at")
    if request.HasField("timeout_ms"):
        checks.duration_ms(request.timeout_ms, "timeout_ms", minimum=1)


def _on_run(kind: Kind, request: Any) -> Operation:
    namespace = checks.namespace(request.namespace)
    return Operation(kind, namespace, checks.uuid(request.run_id, "run_id"), request)


def _filters(request: pb.ListWorkflowsRequest) -> dict[str, Any]:
    statuses = []
    for status in request.statuses:
        checks.enum(status, RunStatus, "statuses", required=True)
        if status in (rows.RUN_STATUS["SCHEDULED"], rows.RUN_STATUS["PAUSED"]):
            raise invalid("statuses", "SCHEDULED and PAUSED belong to schedules, which are listed with ListSchedules")
        statuses.append(rows.RUN_STATUS_NAME[status])
    return {
        "statuses": statuses or None,
        "workflow_type": checks.name(request.workflow_type, "workflow_type") if request.workflow_type else None,
        "task_queue": checks.name(request.task_queue, "task_queue") if request.task_queue else None,
        "labels": rows.labels_text(checks.labels(request.labels, "labels")),
        "since": checks.timestamp(request.since, "since") if request.HasField("since") else None,
        "until": checks.timestamp(request.until, "until") if request.HasField("until") else None,
        "parent_run_id": checks.uuid(request.parent_run_id, "parent_run_id", required=False) or None,
        "schedule_id": checks.uuid(request.schedule_id, "schedule_id", required=False) or None,
    }
