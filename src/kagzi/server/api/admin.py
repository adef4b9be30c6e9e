"""AdminService: what an operator asks. Each method checks its request, asks the store one thing and answers;
errors are mapped by the interceptor. Only DrainWorker changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import grpc
from asyncpg.connection import Connection

from kagzi.protocol.v1 import admin_pb2 as pb
from kagzi.protocol.v1.admin_pb2_grpc import AdminServiceServicer
from kagzi.protocol.v1.common_pb2 import Step, StepStatus
from kagzi.protocol.v1.worker_pb2 import ServedType
from kagzi.server.api import checks
from kagzi.server.api.phases import ATTEMPTS
from kagzi.server.explanation import explain
from kagzi.server.vitals import Vitals
from kagzi.store import attention, counts, depths, explanations, inspection, namespaces, roster, rows, stats, workers
from kagzi.store.database import Database
from kagzi.store.errors import invalid
from kagzi.store.inspection import BEGINNING, Place, StepFilter
from kagzi.store.roster import Filter, Worker

Context = grpc.aio.ServicerContext[Any, Any]
Row = TypeVar("Row")

_HELD_RUNS = 100
_POINTS = 1_000
_MINUTE = timedelta(minutes=1)
_INSTANT = timedelta(microseconds=1)


class Admin(AdminServiceServicer):
    """Shows workers, steps, queues and the server itself. `drain` tells a connected worker to drain."""

    def __init__(self, database: Database, vitals: Vitals, drain: Callable[[str], None]) -> None:
        self._database = database
        self._vitals = vitals
        self._drain = drain

    async def ListWorkers(self, request: pb.ListWorkersRequest, context: Context) -> pb.ListWorkersResponse:
        namespace, scope, page = _paged(request)
        wanted = Filter(
            statuses=[
                _status_name(checks.enum(status, pb.WorkerStatus, "statuses", required=True))
                for status in request.statuses
            ],
            task_queue=checks.name(request.task_queue, "task_queue", default=""),
            workflow_type=checks.name(request.workflow_type, "workflow_type", default=""),
        )
        after = page.key(checks.moment_and_id, None)
        look_at = checks.look_at(request.look_at) or roster.COUNTED

        async def read(connection: Connection) -> list[Worker]:
            await namespaces.get(connection, namespace)
            return await roster.list_page(
                connection, namespace, wanted, most=page.size + 1, after=after, look_at=look_at
            )

        found, token = _cut(
            await self._database.read(read),
            page,
            scope,
            lambda worker: (rows.microseconds(worker.registered_at), worker.worker_id),
        )
        return pb.ListWorkersResponse(workers=[_worker(namespace, worker) for worker in found], next_page_token=token)

    async def GetWorker(self, request: pb.GetWorkerRequest, context: Context) -> pb.GetWorkerResponse:
        namespace = checks.namespace(request.namespace)
        worker_id = checks.uuid(request.worker_id, "worker_id")
        look_at = checks.look_at(request.look_at) or roster.COUNTED

        async def read(connection: Connection) -> pb.GetWorkerResponse:
            worker = await roster.get(connection, namespace, worker_id, look_at=look_at)
            answer = pb.GetWorkerResponse(worker=_worker(namespace, worker))
            held = await roster.held_runs(connection, namespace, worker_id, most=_HELD_RUNS, look_at=look_at)
            for run in held:
                answer.runs.add(
                    run_id=run.run_id,
                    workflow_type=run.workflow_type,
                    lease_until=rows.timestamp(run.lease_until),
                    crashes=run.crashes,
                )
            return answer

        return await self._database.read(read)

    async def GetStep(self, request: pb.GetStepRequest, context: Context) -> pb.GetStepResponse:
        namespace = checks.namespace(request.namespace)
        run_id = checks.uuid(request.run_id, "run_id")
        attempt_id = checks.uuid(request.attempt_id, "attempt_id", required=False)
        if attempt_id:
            step = await self._database.read(lambda c: inspection.step_by_attempt(c, namespace, run_id, attempt_id))
        else:
            step_id = checks.name(request.step_id, "step_id")
            number = _attempt_number(request)
            step = await self._database.read(lambda c: inspection.step_by_id(c, namespace, run_id, step_id, number))
        return pb.GetStepResponse(run_id=run_id, step=step)

    async def ListSteps(self, request: pb.ListStepsRequest, context: Context) -> pb.ListStepsResponse:
        namespace, scope, page = _paged(request)
        run_id = checks.uuid(request.run_id, "run_id")
        wanted = StepFilter(
            step_id=checks.name(request.step_id, "step_id", default=""),
            statuses=[
                _step_status_name(checks.enum(status, StepStatus, "statuses", required=True))
                for status in request.statuses
            ],
            superseded=request.include_superseded,
            outputs=request.include_outputs,
            by_id=request.by_step_id,
        )
        look_at = checks.look_at(request.look_at)
        after = page.key(_place_of_step, BEGINNING)

        async def read(connection: Connection) -> tuple[list[Step], bool, bool]:
            asked = await inspection.bounded(connection, namespace, run_id, wanted, look_at)
            found, more = await inspection.steps(connection, namespace, run_id, asked, most=page.size, after=after)
            return found, more, asked.by_id

        found, more, by_id = await self._database.read(read)
        token = ""
        if more:
            last = found[-1]
            token = checks.page_token(scope, (last.position, last.attempt_number, last.step_id))
        return pb.ListStepsResponse(steps=found, next_page_token=token, by_step_id=by_id)

    async def HealthCheck(self, request: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:
        return await self._vitals.health()

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Context) -> pb.GetServerInfoResponse:
        return await self._vitals.info()

    async def GetStats(self, request: pb.GetStatsRequest, context: Context) -> pb.GetStatsResponse:
        namespace = checks.namespace(request.namespace)
        workflow_type = checks.name(request.workflow_type, "workflow_type", default="")
        look_at = checks.look_at(request.look_at)

        async def read(connection: Connection) -> pb.GetStatsResponse:
            await namespaces.get(connection, namespace)
            now = (await inspection.database(connection)).now
            since, until, minutes = _stretch(request, now)
            bounds = {"since": since, "until": until}
            points, looked_until = await stats.points(
                connection, namespace, minutes=minutes, workflow_type=workflow_type, look_at=look_at, **bounds
            )
            needs = await attention.attention(connection, namespace) if request.include_attention else []
            return pb.GetStatsResponse(
                points=points,
                step_ms=minutes * 60_000,
                attention=needs,
                looked_until=rows.timestamp(looked_until),
            )

        return await self._database.read(read)

    async def DrainWorker(self, request: pb.DrainWorkerRequest, context: Context) -> pb.DrainWorkerResponse:
        namespace = checks.namespace(request.namespace)
        worker_id = checks.uuid(request.worker_id, "worker_id")
        worker = await self._database.transact(lambda c: workers.drain(c, namespace, worker_id))
        # A worker of another server, or of unary calls, hears of it with its next heartbeat.
        self._drain(worker_id)
        return pb.DrainWorkerResponse(status=_status(worker.status), running=worker.running)

    async def GetQueueDepth(self, request: pb.GetQueueDepthRequest, context: Context) -> pb.GetQueueDepthResponse:
        namespace, scope, page = _paged(request)
        task_queue = checks.name(request.task_queue, "task_queue", default="")
        workflow_type = checks.name(request.workflow_type, "workflow_type", default="")

        async def read(connection: Connection) -> list[pb.QueueDepth]:
            await namespaces.get(connection, namespace)
            look = counts.read if request.counted else depths.depth
            return await look(
                connection,
                namespace,
                most=page.size + 1,
                task_queue=task_queue,
                workflow_type=workflow_type,
                after=_pair(page),
            )

        found, token = _cut(
            await self._database.read(read), page, scope, lambda one: (one.task_queue, one.workflow_type)
        )
        return pb.GetQueueDepthResponse(depths=found, next_page_token=token)

    async def ListWorkflowTypes(
        self, request: pb.ListWorkflowTypesRequest, context: Context
    ) -> pb.ListWorkflowTypesResponse:
        namespace, scope, page = _paged(request)
        task_queue = checks.name(request.task_queue, "task_queue", default="")

        async def read(connection: Connection) -> list[pb.WorkflowType]:
            await namespaces.get(connection, namespace)
            return await depths.types(
                connection,
                namespace,
                most=page.size + 1,
                task_queue=task_queue,
                after=_pair(page),
                look_at=checks.look_at(request.look_at) or None,
            )

        found, token = _cut(
            await self._database.read(read), page, scope, lambda one: (one.workflow_type, one.task_queue)
        )
        return pb.ListWorkflowTypesResponse(types=found, next_page_token=token)

    async def ExplainRun(self, request: pb.ExplainRunRequest, context: Context) -> pb.ExplainRunResponse:
        namespace = checks.namespace(request.namespace)
        run_id = checks.uuid(request.run_id, "run_id")
        facts = await self._database.read(lambda c: explanations.facts(c, namespace, run_id))
        return explain(facts, self._vitals.heartbeat)


def _attempt_number(request: pb.GetStepRequest) -> int | None:
    """Those below 0 were set aside by a retry of the whole run."""
    if not request.HasField("attempt_number"):
        return None
    if abs(request.attempt_number) > ATTEMPTS:
        raise invalid("attempt_number", f"attempt_number is {request.attempt_number}, and none is beyond {ATTEMPTS}")
    return request.attempt_number


def _paged(request: Any) -> tuple[str, str, checks.Page]:
    """The namespace of a list, what its page tokens are bound to, and the page that is asked for."""
    namespace = checks.namespace(request.namespace)
    scope = checks.scope(request, namespace)
    return namespace, scope, checks.page(request.page_size, request.page_token, scope)


def _cut(
    found: Sequence[Row], page: checks.Page, scope: str, key: Callable[[Row], tuple[str | int, ...]]
) -> tuple[Sequence[Row], str]:
    """A page of rows of which one more than asked for was read, and the token of the next."""
    if len(found) <= page.size:
        return found, ""
    kept = found[: page.size]
    return kept, checks.page_token(scope, key(kept[-1]))


def _pair(page: checks.Page) -> tuple[str, str]:
    return page.key(lambda first, second: (checks.name(first, "first"), checks.name(second, "second")), ("", ""))


def _place_of_step(position: int, attempt: int, step_id: str) -> Place:
    # An attempt that was set aside has a number below 0.
    if not (0 <= position < 2**31 and -(2**31) < attempt < 2**31):
        raise ValueError
    return position, attempt, checks.name(step_id, "step_id")


def _stretch(request: pb.GetStatsRequest, now: datetime) -> tuple[datetime, datetime, int]:
    """From when until when, and how many minutes make a point. The current minute is shown as far as it is."""
    until = checks.timestamp(request.until, "until") if request.HasField("until") else now
    until = _minute(until + _MINUTE - _INSTANT)
    since = checks.timestamp(request.since, "since") if request.HasField("since") else until - 60 * _MINUTE
    since = _minute(since)
    if since >= until:
        raise invalid("until", "until must be later than since, or absent for now")
    length = (until - since) // _MINUTE
    minutes = -(-length // _POINTS)
    if request.step_ms:
        step = checks.duration_ms(request.step_ms, "step_ms", minimum=60_000)
        minutes, rest = divmod(step, 60_000)
        if rest or -(-length // minutes) > _POINTS:
            message = f"step_ms must be whole minutes, and at most {_POINTS} of them fit from since to until"
            raise invalid("step_ms", message)
    return since, until, minutes


def _minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


def _status(name: str) -> pb.WorkerStatus.ValueType:
    return pb.WorkerStatus.Value(f"WORKER_{name}")


def _status_name(value: int) -> str:
    return pb.WorkerStatus.Name(pb.WorkerStatus.ValueType(value)).removeprefix("WORKER_")


def _step_status_name(value: int) -> str:
    return rows.STEP_STATUS_NAME[StepStatus.ValueType(value)]


def _worker(namespace: str, worker: Worker) -> pb.Worker:
    return pb.Worker(
        namespace=namespace,
        worker_id=worker.worker_id,
        instance=worker.instance,
        task_queue=worker.task_queue,
        types=[
            ServedType(name=served.name, version=served.version, definition_hash=served.definition_hash)
            for served in worker.types
        ],
        hostname=worker.hostname,
        pid=worker.pid,
        version=worker.version,
        labels=worker.labels,
        status=_status(worker.status),
        concurrency=worker.concurrency,
        running=worker.running,
        registered_at=rows.timestamp(worker.registered_at),
        last_heartbeat_at=rows.timestamp(worker.last_heartbeat_at),
        drain_requested_at=rows.timestamp(worker.drain_requested_at),
        deregistered_at=rows.timestamp(worker.deregistered_at),
    )
