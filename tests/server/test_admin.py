"""AdminService over the wire: what is asked, answered and refused, by a real server on a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
import pytest_asyncio
from asyncpg.connection import Connection
from google.protobuf.timestamp_pb2 import Timestamp

from kagzi.embedded import Embedded
from kagzi.protocol.v1 import admin_pb2 as pb
from kagzi.protocol.v1.admin_pb2_grpc import AdminServiceStub, add_AdminServiceServicer_to_server
from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.protocol.v1.worker_pb2 import ServedType as Served
from kagzi.server import settings
from kagzi.server.api import checks
from kagzi.server.api.admin import Admin
from kagzi.server.api.errors import Errors
from kagzi.server.vitals import Check, Vitals
from kagzi.store import inspection, rows, stats, workers
from kagzi.store.database import Database
from kagzi.store.roster import ServedType
from tests.server.calls import refusal
from tests.store import given

SERVER = "0190a0a0-0000-7000-8000-000000000001"


@dataclass
class Running:
    """A server with AdminService alone."""

    stub: Any
    database: Database
    drained: list[str] = field(default_factory=list)
    parts: list[Check] = field(default_factory=list)

    async def do(self, work: Any) -> Any:
        return await self.database.transact(work)

    async def worker(self, instance: str, **more: Any) -> str:
        asked = {"task_queue": "default", "types": [ServedType("order", "2", "hash")], **more}
        registered = await self.do(lambda c: workers.register(c, "default", instance=instance, **asked))
        worker_id: str = registered.worker_id
        return worker_id


async def serve(url: str) -> AsyncIterator[Running]:
    database = await Database(url).open()
    running = Running(None, database)
    vitals = Vitals(database, settings.load(), SERVER, lambda: running.parts)
    server = grpc.aio.server(interceptors=[Errors()])
    add_AdminServiceServicer_to_server(Admin(database, vitals, running.drained.append), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        running.stub = AdminServiceStub(channel)
        yield running
    await server.stop(None)
    await database.close()


@pytest_asyncio.fixture
async def running(database_url: str) -> AsyncIterator[Running]:
    async for one in serve(database_url):
        yield one


def stamp(moment: datetime) -> Timestamp:
    made = rows.timestamp(moment)
    assert made is not None
    return made


async def test_workers_come_in_pages_whose_tokens_fit_their_filters_alone(running: Running) -> None:
    ids = [await running.worker(f"w{number}") for number in range(3)]
    first = await running.stub.ListWorkers(pb.ListWorkersRequest(page_size=2))
    token = first.next_page_token
    rest = await running.stub.ListWorkers(pb.ListWorkersRequest(page_size=2, page_token=token))
    assert [worker.worker_id for worker in (*first.workers, *rest.workers)] == ids[::-1]
    assert rest.next_page_token == ""
    for other in (pb.ListWorkersRequest(task_queue="slow"), pb.ListWorkersRequest(namespace="another")):
        other.page_token = token
        detail = await refusal(running.stub.ListWorkers(other))
        assert (detail.code, detail.field) == (ErrorDetail.INVALID_ARGUMENT, "page_token")


async def test_a_worker_is_shown_with_what_it_said_and_what_it_holds(running: Running) -> None:
    worker_id = await running.worker("one", hostname="box", pid=7, version="1.2", labels={"zone": "a"}, concurrency=9)
    held = await running.do(lambda c: given.run(c, "RUNNING", "20 s", locked_by=worker_id, crashes=1))
    shown = await running.stub.GetWorker(pb.GetWorkerRequest(worker_id=worker_id.upper()))
    worker = shown.worker
    assert (worker.namespace, worker.worker_id, worker.instance) == ("default", worker_id, "one")
    assert (worker.hostname, worker.pid, worker.version, worker.concurrency) == ("box", 7, "1.2", 9)
    assert (worker.status, worker.running, dict(worker.labels)) == (pb.WORKER_ONLINE, 1, {"zone": "a"})
    assert list(worker.types) == [Served(name="order", version="2", definition_hash="hash")]
    assert [(run.run_id, run.workflow_type, run.crashes) for run in shown.runs] == [(held, "order", 1)]
    assert not worker.HasField("drain_requested_at")


async def test_a_drain_is_stored_and_told_to_the_stream(running: Running) -> None:
    worker_id = await running.worker("one")
    answer = await running.stub.DrainWorker(pb.DrainWorkerRequest(worker_id=worker_id))
    assert (answer.status, answer.running, running.drained) == (pb.WORKER_DRAINING, 0, [worker_id])
    await running.do(lambda c: workers.deregister(c, "default", worker_id))
    detail = await refusal(running.stub.DrainWorker(pb.DrainWorkerRequest(worker_id=worker_id)))
    assert detail.code == ErrorDetail.PRECONDITION_FAILED
    assert running.drained == [worker_id]
    offline = await running.stub.ListWorkers(pb.ListWorkersRequest(statuses=[pb.WORKER_OFFLINE]))
    assert [worker.worker_id for worker in offline.workers] == [worker_id]


async def test_steps_are_read_by_name_by_attempt_and_in_pages(running: Running) -> None:
    async def write(connection: Connection) -> tuple[str, list[str]]:
        run_id = await given.run(connection)
        return run_id, [
            await given.step(connection, run_id, f"s{number}", position=number, output=b"1") for number in (1, 2, 3)
        ]

    run_id, attempts = await running.do(write)
    by_name = await running.stub.GetStep(pb.GetStepRequest(run_id=run_id, step_id="s2"))
    by_attempt = await running.stub.GetStep(pb.GetStepRequest(run_id=run_id, attempt_id=attempts[1]))
    assert by_name == by_attempt
    assert (by_name.run_id, by_name.step.output.data) == (run_id, b"1")
    names: list[str] = []
    token = ""
    while len(names) < 3:
        page = await running.stub.ListSteps(pb.ListStepsRequest(run_id=run_id, page_size=2, page_token=token))
        assert not any(step.HasField("output") for step in page.steps)
        names += [step.step_id for step in page.steps]
        token = page.next_page_token
    assert (names, token) == (["s1", "s2", "s3"], "")


async def test_a_history_longer_than_is_looked_at_comes_by_step_id(running: Running) -> None:
    async def write(connection: Connection) -> str:
        run_id = await given.run(connection)
        # Set aside by a retry of the whole run, failed, and tried again.
        for number, latest in ((-19_999, False), (1, False), (2, True)):
            await given.step(connection, run_id, "z", attempt_number=number, is_latest=latest, position=1)
        await given.step(connection, run_id, "a", position=2)
        return run_id

    async def listed(look_at: int) -> tuple[list[tuple[str, int]], set[bool]]:
        found: list[tuple[str, int]] = []
        by_id: set[bool] = set()
        request = pb.ListStepsRequest(run_id=run_id, include_superseded=True, page_size=1, look_at=look_at)
        while not by_id or request.page_token:
            page = await running.stub.ListSteps(request)
            found += [(step.step_id, step.attempt_number) for step in page.steps]
            by_id.add(page.by_step_id)
            request.page_token = page.next_page_token
        return found, by_id

    run_id = await running.do(write)
    tries = [("z", -19_999), ("z", 1), ("z", 2)]
    for look_at in (0, 4):
        assert await listed(look_at) == ([*tries, ("a", 1)], {False})
    assert await listed(3) == ([("a", 1), *tries], {True})
    for number in (-19_999, 1, 2):
        told = await running.stub.GetStep(pb.GetStepRequest(run_id=run_id, step_id="z", attempt_number=number))
        assert told.step.attempt_number == number
    missing = pb.GetStepRequest(run_id=run_id, step_id="z", attempt_number=3)
    assert (await refusal(running.stub.GetStep(missing))).code == ErrorDetail.NOT_FOUND
    assert (await running.stub.GetStep(pb.GetStepRequest(run_id=run_id, step_id="z"))).step.attempt_number == 2


async def test_depth_and_types_come_in_pages(running: Running) -> None:
    await running.worker("one", types=[ServedType("b"), ServedType("c")])
    await running.do(lambda c: given.run(c, workflow_type="a"))
    first = await running.stub.GetQueueDepth(pb.GetQueueDepthRequest(page_size=2))
    rest = await running.stub.GetQueueDepth(pb.GetQueueDepthRequest(page_size=2, page_token=first.next_page_token))
    shown = [(depth.workflow_type, depth.pending_due, depth.workers) for depth in (*first.depths, *rest.depths)]
    assert shown == [("a", 1, 0), ("b", 0, 1), ("c", 0, 1)]
    types = await running.stub.ListWorkflowTypes(pb.ListWorkflowTypesRequest(page_size=1))
    more = await running.stub.ListWorkflowTypes(
        pb.ListWorkflowTypesRequest(page_size=1, page_token=types.next_page_token)
    )
    assert [one.workflow_type for one in (*types.types, *more.types)] == ["b", "c"]


async def test_stats_cover_the_last_hour_unless_told_otherwise(running: Running) -> None:
    info = await running.do(inspection.database)
    await running.do(lambda c: stats.put(c, "default", SERVER, info.now, {"order": stats.Tally(started=4)}))
    answer = await running.stub.GetStats(pb.GetStatsRequest(workflow_type="order", include_attention=True))
    assert (len(answer.points), answer.step_ms, sum(point.started for point in answer.points)) == (60, 60_000, 4)
    since = datetime(2026, 1, 1, tzinfo=UTC)
    span = pb.GetStatsRequest(since=stamp(since), until=stamp(since + timedelta(days=14)))
    answer = await running.stub.GetStats(span)
    assert (len(answer.points), answer.step_ms) == (960, 21 * 60_000)
    assert answer.points[0].at == stamp(since)


@pytest.mark.parametrize(
    ("method", "request_", "field_"),
    [
        ("ListWorkers", pb.ListWorkersRequest(page_size=101), "page_size"),
        ("ListWorkers", pb.ListWorkersRequest(statuses=[9]), "statuses"),  # type: ignore[list-item]
        ("ListWorkers", pb.ListWorkersRequest(namespace="x" * 256), "namespace"),
        ("GetWorker", pb.GetWorkerRequest(worker_id="one"), "worker_id"),
        ("GetStep", pb.GetStepRequest(run_id=SERVER), "step_id"),
        ("ExplainRun", pb.ExplainRunRequest(run_id="one"), "run_id"),
        ("GetStep", pb.GetStepRequest(attempt_id=SERVER), "run_id"),
        ("GetStep", pb.GetStepRequest(run_id=SERVER, step_id="a\0b"), "step_id"),
        ("ListSteps", pb.ListStepsRequest(run_id=SERVER, page_token="AAAA"), "page_token"),
        ("ListSteps", pb.ListStepsRequest(run_id=SERVER, page_size=-1), "page_size"),
        ("ListSteps", pb.ListStepsRequest(run_id=SERVER, look_at=-1), "look_at"),
        ("ListSteps", pb.ListStepsRequest(run_id=SERVER, look_at=10_001), "look_at"),
        ("GetQueueDepth", pb.GetQueueDepthRequest(task_queue="q\n"), "task_queue"),
        ("GetStats", pb.GetStatsRequest(step_ms=1), "step_ms"),
        ("GetStats", pb.GetStatsRequest(step_ms=90_000), "step_ms"),
        ("GetStats", pb.GetStatsRequest(since=Timestamp(seconds=1), step_ms=60_000), "step_ms"),
        ("GetStats", pb.GetStatsRequest(since=Timestamp(seconds=4_000_000_000)), "until"),
        ("GetStats", pb.GetStatsRequest(until=Timestamp(seconds=-5)), "until"),
    ],
)
async def test_bad_input_is_refused_with_the_name_of_its_field(
    running: Running, method: str, request_: Any, field_: str
) -> None:
    detail = await refusal(getattr(running.stub, method)(request_))
    assert detail.field == field_
    assert detail.code in (ErrorDetail.INVALID_ARGUMENT, ErrorDetail.LIMIT_EXCEEDED)
    assert detail.message


@pytest.mark.parametrize(
    "key", [(), ("a",), (1, 2, 3, 4), ("a\0b", "c"), (2**70, SERVER, "s"), (2**70, SERVER), (1, 1, 1)]
)
async def test_a_page_token_made_around_another_lists_key_is_refused(
    running: Running, key: tuple[str | int, ...]
) -> None:
    for method, request in (
        ("ListWorkers", pb.ListWorkersRequest()),
        ("ListSteps", pb.ListStepsRequest(run_id=SERVER)),
        ("GetQueueDepth", pb.GetQueueDepthRequest()),
        ("ListWorkflowTypes", pb.ListWorkflowTypesRequest()),
    ):
        request.page_token = checks.page_token(checks.scope(request, "default"), key)
        detail = await refusal(getattr(running.stub, method)(request))
        assert (detail.code, detail.field) == (ErrorDetail.INVALID_ARGUMENT, "page_token"), (method, detail)


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("ListWorkers", pb.ListWorkersRequest(namespace="nowhere")),
        ("GetWorker", pb.GetWorkerRequest(worker_id=SERVER)),
        ("DrainWorker", pb.DrainWorkerRequest(worker_id=SERVER)),
        ("GetStep", pb.GetStepRequest(run_id=SERVER, step_id="s")),
        ("ListSteps", pb.ListStepsRequest(run_id=SERVER)),
        ("ExplainRun", pb.ExplainRunRequest(run_id=SERVER)),
        ("GetQueueDepth", pb.GetQueueDepthRequest(namespace="nowhere")),
        ("ListWorkflowTypes", pb.ListWorkflowTypesRequest(namespace="nowhere")),
        ("GetStats", pb.GetStatsRequest(namespace="nowhere")),
    ],
)
async def test_what_does_not_exist_is_not_found(running: Running, method: str, request_: Any) -> None:
    assert (await refusal(getattr(running.stub, method)(request_))).code == ErrorDetail.NOT_FOUND


async def test_a_server_says_what_it_is(running: Running) -> None:
    info = await running.stub.GetServerInfo(pb.GetServerInfoRequest())
    assert (info.server_id, info.lease_ms, info.heartbeat_interval_ms) == (SERVER, 30_000, 10_000)
    assert info.schema_version == info.known_schema_version >= 1
    assert (info.limits.payload_bytes, info.limits.name_bytes) == (2 * 1024 * 1024, 255)
    assert info.version
    assert info.postgres_version


async def test_health_is_that_of_the_worst_part(running: Running) -> None:
    answer = await running.stub.HealthCheck(pb.HealthCheckRequest())
    assert (answer.status, [check.name for check in answer.checks]) == (pb.HEALTH_SERVING, ["database", "schema"])
    running.parts.append(Check(name="notify", status=pb.HEALTH_DEGRADED))
    assert (await running.stub.HealthCheck(pb.HealthCheckRequest())).status == pb.HEALTH_DEGRADED
    await running.do(lambda c: c.execute("delete from kagzi.migrations"))
    answer = await running.stub.HealthCheck(pb.HealthCheckRequest())
    assert (answer.status, answer.checks[1].status) == (pb.HEALTH_NOT_SERVING, pb.HEALTH_NOT_SERVING)
    assert "kagzi migrate" in answer.checks[1].message


async def test_health_is_answered_without_a_database(postgres: Embedded) -> None:
    async for running in serve(postgres.url):
        postgres.stop()
        answer = await running.stub.HealthCheck(pb.HealthCheckRequest())
        assert (answer.status, [check.name for check in answer.checks]) == (pb.HEALTH_NOT_SERVING, ["database"])
