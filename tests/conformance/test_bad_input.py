"""Bad input: every field of every request that can be wrong is, once. The call is refused with a typed error that names
the field, nothing is written, and the server is well afterwards.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import asyncpg
import grpc
import pytest
from google.protobuf.message import Message

from kagzi.protocol.v1 import admin_pb2 as ad
from kagzi.protocol.v1 import namespace_pb2 as ns
from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1 import workflow_pb2 as wf
from kagzi.protocol.v1.common_pb2 import COMPLETED, ErrorDetail, Payload
from tests.conformance import specimens
from tests.conformance.conftest import Servers
from tests.conformance.contract import detail, refused
from tests.conformance.execution import new_id
from tests.conformance.place import Hand, Place, held
from tests.conformance.spoiling import PAYLOAD_BYTES, spoiled

pytestmark = pytest.mark.conformance

CALLS = sorted(
    specimens.short(method)
    for method in specimens.methods()
    if not specimens.comes_later(method) and specimens.short(method) not in specimens.STREAMS
)
# Fields without which a call has no meaning.
REQUIRED = {
    "WorkerService/Register": ("instance", "types"),
    "WorkerService/Heartbeat": ("worker_id",),
    "WorkerService/Deregister": ("worker_id",),
    "WorkerService/PollTask": ("worker_id",),
    "WorkerService/BeginStep": ("run.run_id", "run.claim_token", "step.step_id", "step.attempt_id", "step.kind"),
    "WorkerService/CompleteStep": ("run.run_id", "run.claim_token", "step.step_id", "step.attempt_id", "step.kind"),
    "WorkerService/FailStep": ("run.run_id", "run.claim_token", "step.step_id", "step.attempt_id", "step.kind"),
    "WorkerService/CompleteWorkflow": ("run.run_id", "run.claim_token"),
    "WorkerService/FailWorkflow": ("run.run_id", "run.claim_token"),
    "WorkerService/Sleep": ("run.run_id", "run.claim_token", "step_id", "attempt_id", "duration_ms"),
    "WorkerService/Suspend": ("run.run_id", "run.claim_token", "suspend.step_ids"),
    "WorkerService/Release": ("run.run_id", "run.claim_token"),
    "WorkerService/ReceiveSignal": ("run.run_id", "run.claim_token", "step_id", "attempt_id", "name"),
    "WorkerService/StartChild": (
        "run.run_id",
        "run.claim_token",
        "start_child.step_id",
        "start_child.attempt_id",
        "start_child.child.run_id",
        "start_child.child.workflow_type",
    ),
    "WorkerService/SetState": ("run.run_id", "run.claim_token", "set_state.state_json", "set_state.number"),
    "WorkerService/ContinueAsNew": ("run.run_id", "run.claim_token", "continue_as_new.new_run_id"),
    "WorkflowService/StartWorkflow": ("workflow_type",),
    "WorkflowService/GetWorkflow": ("run_id",),
    "WorkflowService/GetWorkflowByExternalId": ("external_id",),
    "WorkflowService/CancelWorkflow": ("run_id",),
    "WorkflowService/TerminateWorkflow": ("run_id",),
    "WorkflowService/RetryWorkflow": ("run_id", "new_run_id"),
    "WorkflowService/ForkWorkflow": ("run_id", "new_run_id", "step_id"),
    "WorkflowService/ResumeWorkflow": ("run_id",),
    "WorkflowService/ResolveStep": ("run_id", "step_id", "resolution"),
    "WorkflowService/SignalWorkflow": ("run_id", "name"),
    "AdminService/GetWorker": ("worker_id",),
    "AdminService/DrainWorker": ("worker_id",),
    "AdminService/ExplainRun": ("run_id",),
    "AdminService/GetStep": ("run_id", "step_id"),
    "AdminService/ListSteps": ("run_id",),
    "WorkflowScheduleService/CreateSchedule": ("schedule_id", "timing", "workflow_type"),
    "WorkflowScheduleService/GetSchedule": ("schedule_id",),
    "WorkflowScheduleService/UpdateSchedule": ("schedule_id",),
    "WorkflowScheduleService/DeleteSchedule": ("schedule_id",),
    "WorkflowScheduleService/PauseSchedule": ("schedule_id",),
    "WorkflowScheduleService/ResumeSchedule": ("schedule_id",),
    "WorkflowScheduleService/TriggerSchedule": ("schedule_id",),
    "WorkflowScheduleService/BackfillSchedule": ("schedule_id", "since"),
    "WorkflowScheduleService/PreviewSchedule": ("schedule_id",),
    "WorkflowScheduleService/ListScheduleRuns": ("schedule_id",),
    "NamespaceService/CreateNamespace": ("name",),
    "NamespaceService/CreateKey": ("role",),
    "NamespaceService/RevokeKey": ("key_id",),
    "AutomationService/DeployAutomation": ("definition.name", "definition.definition_hash", "definition.handlers"),
    "AutomationService/GetAutomation": ("name",),
    "AutomationService/RunNow": ("name",),
    "AutomationService/PauseAutomation": ("name",),
    "AutomationService/ResumeAutomation": ("name",),
    "AutomationService/RetryBlocked": ("name",),
    "AutomationService/ResolveMutation": ("name", "mutation_id", "resolution"),
    "AutomationService/Publish": ("name", "events"),
    "AutomationService/ListEvents": ("name",),
    "AutomationService/ListInputs": ("name",),
    "AutomationService/GetInput": ("name", "key.source", "key.type", "key.id"),
    "AutomationService/SkipInput": ("name", "key.source", "key.type", "key.id"),
}
REFUSALS = (ErrorDetail.INVALID_ARGUMENT, ErrorDetail.LIMIT_EXCEEDED)

Ledger = Callable[[], Awaitable[object]]


@pytest.fixture
async def room(quiet: Place) -> Place:
    """A place in a namespace of its own."""
    await quiet.contract.namespaces.CreateNamespace(ns.CreateNamespaceRequest(name=quiet.queue))
    return Place(quiet.contract, quiet.queue)


@pytest.fixture
async def ledger(servers: Servers, room: Place) -> AsyncIterator[Ledger]:
    """Everything that is stored of the room's namespace, to show that nothing was written."""
    if servers.database_url is None:
        yield _no_ledger
        return
    connection = await asyncpg.connect(servers.database_url)
    tables = await connection.fetch(
        "select table_name as name from information_schema.columns"
        " where table_schema = 'kagzi' and column_name = 'namespace' and table_name <> 'stats' order by 1"
    )

    async def look() -> object:
        seen: list[Any] = [await connection.fetchval("select count(*) from kagzi.namespaces")]
        for table in tables:
            rows = f"select t::text from kagzi.{table['name']} t where namespace like $1 order by 1"  # noqa: S608 - ours
            seen += [(table["name"], row["t"]) for row in await connection.fetch(rows, f"{room.namespace}%")]
        return seen

    yield look
    await connection.close()


async def _no_ledger() -> object:
    return None


@pytest.fixture
async def worker(room: Place) -> Hand:
    return await room.hand()


@pytest.fixture
async def run(room: Place, worker: Hand) -> pb.Held:
    """A run that the worker holds, with a step on record."""
    run = held(await worker.take(await room.start()))
    await worker.begin(run, "begin")
    return run


async def _blamed(place: Place, call: str, request: bytes) -> ErrorDetail:
    """What the server said, or nothing when it took the request."""
    try:
        await place.contract.raw(f"/kagzi.v1.{call}", request)
    except grpc.aio.AioRpcError as error:
        return detail(error)
    return ErrorDetail()


def _without(good: Message, path: str) -> bytes:
    spoilt = type(good)()
    spoilt.CopyFrom(good)
    *outer, last = path.split(".")
    part: Any = spoilt
    for name in outer:
        part = getattr(part, name)
    part.ClearField(last)
    return spoilt.SerializeToString()


def test_a_good_request_is_known_for_every_call(quiet: Place) -> None:
    assert sorted(specimens.of_everybody(quiet, new_id(), pb.Held())) == CALLS
    assert set(REQUIRED) <= set(CALLS)


@pytest.mark.parametrize("call", CALLS)
async def test_each_bad_field_is_refused_by_name_and_nothing_is_written(
    room: Place, worker: Hand, run: pb.Held, ledger: Ledger, call: str
) -> None:
    good = specimens.of_everybody(room, worker.worker_id, run)[call]
    before = await ledger()
    wrong = []
    for spoilt in spoiled(good):
        said = await _blamed(room, call, spoilt.request)
        if said.code not in REFUSALS or said.field != spoilt.field or not said.message:
            wrong.append(f"{spoilt.field} ({spoilt.why}): {ErrorDetail.Code.Name(said.code)} {said.field!r}")
    for path in REQUIRED.get(call, ()):
        said = await _blamed(room, call, _without(good, path))
        if said.code != ErrorDetail.INVALID_ARGUMENT or said.field != path:
            wrong.append(f"{path} (missing): {ErrorDetail.Code.Name(said.code)} {said.field!r}")
    assert not wrong, "\n".join(wrong)
    assert await ledger() == before
    await _is_well(room, worker, run)


async def _is_well(room: Place, worker: Hand, run: pb.Held) -> None:
    health = await room.contract.admin.HealthCheck(ad.HealthCheckRequest())
    assert health.status in (ad.HEALTH_SERVING, ad.HEALTH_DEGRADED)
    assert not (await worker.beat(run)).lost
    assert await worker.complete(run) == COMPLETED


def _unknown(good: Message) -> list[tuple[str, Message]]:
    """The request with a namespace, run or worker that does not exist."""
    made = []
    for path in ("namespace", "name", "run_id", "run.run_id", "worker_id"):
        spoilt: Any = type(good)()
        spoilt.CopyFrom(good)
        *outer, last = path.split(".")
        part = spoilt
        for name in outer:
            part = getattr(part, name, None)
        if getattr(part, last, None):
            setattr(part, last, new_id())
            made.append((path, spoilt))
    return made


@pytest.mark.parametrize("call", CALLS)
async def test_an_unknown_namespace_run_or_worker_is_not_found(
    room: Place, worker: Hand, run: pb.Held, ledger: Ledger, call: str
) -> None:
    good = specimens.of_everybody(room, worker.worker_id, run)[call]
    # A run id that is new is what these ask for, a name that is new what this one does.
    makes = {
        "WorkflowService/StartWorkflow": "run_id",
        "WorkflowScheduleService/TriggerSchedule": "run_id",
        "NamespaceService/CreateNamespace": "name",
    }
    named = {
        "WorkflowService/SignalWorkflow": "name",
        "WorkerService/ReceiveSignal": "name",
        "NamespaceService/CreateKey": "name",
    }
    before = await ledger()
    for path, spoilt in _unknown(good):
        if path in (makes.get(call), named.get(call)):
            continue
        said = await _blamed(room, call, spoilt.SerializeToString())
        assert said.code == ErrorDetail.NOT_FOUND, f"{path}: {said}"
        assert said.field == path, f"{path}: {said}"
    assert await ledger() == before
    await _is_well(room, worker, run)


async def test_a_parent_that_does_not_exist_is_not_found(room: Place, ledger: Ledger) -> None:
    before = await ledger()
    with refused(ErrorDetail.NOT_FOUND, "parent_run_id"):
        await room.start(parent_run_id=new_id())
    assert await ledger() == before


async def test_a_suspension_over_a_step_that_is_not_on_record_is_refused(
    room: Place, worker: Hand, run: pb.Held, ledger: Ledger
) -> None:
    before = await ledger()
    body = pb.Suspend(step_ids=["begin", "nobody knows this"], operation_id=new_id())
    with refused(ErrorDetail.NOT_FOUND, "suspend.step_ids"):
        await room.contract.workers.Suspend(pb.SuspendRequest(namespace=room.namespace, run=run, suspend=body))
    assert await ledger() == before
    await _is_well(room, worker, run)


async def test_a_payload_of_exactly_the_limit_goes_everywhere_and_comes_back(room: Place, worker: Hand) -> None:
    payload = Payload(data=b"x" * PAYLOAD_BYTES)
    request = room.request(run_id=new_id())
    request.input.CopyFrom(payload)
    await room.contract.workflows.StartWorkflow(request)
    task = await worker.take(request.run_id)
    assert task.input == payload
    run = held(task)
    await worker.complete_step(run, "large", output=payload)
    signal = wf.SignalWorkflowRequest(namespace=room.namespace, run_id=run.run_id, name="go", payload=payload)
    await room.contract.workflows.SignalWorkflow(signal)
    receive = pb.ReceiveSignalRequest(namespace=room.namespace, run=run, step_id="r", attempt_id=new_id(), name="go")
    assert (await room.contract.workers.ReceiveSignal(receive)).signal.payload == payload
    body = pb.ContinueAsNew(new_run_id=new_id(), input=payload, operation_id=new_id())
    await room.contract.workers.ContinueAsNew(
        pb.ContinueAsNewRequest(namespace=room.namespace, run=run, continue_as_new=body)
    )
    task = await worker.take(body.new_run_id)
    assert task.input == payload
    complete = pb.Complete(output=payload, operation_id=new_id())
    await room.contract.workers.CompleteWorkflow(
        pb.CompleteWorkflowRequest(namespace=room.namespace, run=held(task), complete=complete)
    )
    assert (await room.get(task.run_id)).output == payload


async def test_names_of_exactly_the_limit_and_of_every_alphabet_are_taken(room: Place) -> None:
    name = "\N{LATIN SMALL LETTER E WITH ACUTE}" * 127 + "x"
    request = room.request(workflow_type=name, external_id="\N{GRINNING FACE}; drop table runs --", labels={name: name})
    answer = await room.contract.workflows.StartWorkflow(request)
    run = await room.get(answer.run_id)
    assert (run.workflow_type, run.external_id, dict(run.labels)) == (name, request.external_id, {name: name})


async def test_a_message_that_is_too_large_is_refused_before_it_is_looked_at(room: Place, ledger: Ledger) -> None:
    before = await ledger()
    request = wf.StartWorkflowsRequest(namespace=room.namespace, starts=[room.request("x" * 1_000_000)] * 5)
    with refused(ErrorDetail.LIMIT_EXCEEDED):
        await room.contract.workflows.StartWorkflows(request)
    request = wf.StartWorkflowsRequest(namespace=room.namespace, starts=[room.request()] * 1_001)
    with refused(ErrorDetail.LIMIT_EXCEEDED, "starts"):
        await room.contract.workflows.StartWorkflows(request)
    assert await ledger() == before


async def test_a_message_is_read_up_to_its_last_byte_and_no_further(room: Place, ledger: Ledger) -> None:
    """Far beyond the limit gRPC answers in our place, without looking at the message and without a detail."""
    before = await ledger()
    good = wf.CancelWorkflowRequest(namespace=room.namespace, run_id=new_id())
    for size, code in ((4 << 20, ErrorDetail.NOT_FOUND), ((4 << 20) + 1, ErrorDetail.LIMIT_EXCEEDED)):
        said = await _blamed(room, "WorkflowService/CancelWorkflow", _padded(good, size))
        assert said.code == code, said
    said = await _blamed(room, "WorkflowService/CancelWorkflow", _padded(good, 8 << 20))
    assert said.code == ErrorDetail.LIMIT_EXCEEDED
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await room.contract.workflows.CancelWorkflow(wf.CancelWorkflowRequest(reason="x" * (9 << 20)))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await ledger() == before


def _padded(good: Message, size: int) -> bytes:
    """The request in exactly so many bytes: what makes it longer is a field that nobody knows."""
    data = good.SerializeToString()
    # Number 1000, of bytes, then four bytes for a length that is written with as many.
    tag, length = b"\xc2\x3e", size - len(data) - 2 - 4
    digits = bytes((length >> shift & 0x7F) | (0x80 if shift < 21 else 0) for shift in (0, 7, 14, 21))
    return data + tag + digits + b"x" * length


async def test_text_of_people_and_programs_is_cleaned_and_kept(room: Place, worker: Hand, run: pb.Held) -> None:
    fail = pb.Fail(operation_id=new_id())
    fail.failure.type = "E" * 300
    fail.failure.message = "a\0b" + "x" * 100_000
    fail.failure.traceback = "\0"
    await room.contract.workers.FailWorkflow(pb.FailWorkflowRequest(namespace=room.namespace, run=run, fail=fail))
    seen = (await room.get(run.run_id)).failure
    assert seen.type.startswith("EEE")
    assert len(seen.type.encode()) <= 255
    assert seen.message.startswith("abxxx")
    assert "\0" not in seen.message + seen.traceback
    waiting = await room.start()
    await room.cancel(waiting, "a\0b")
    assert (await room.get(waiting)).failure.message == "ab"


async def test_a_stream_must_begin_with_a_hello_and_refuses_one_operation_at_a_time(room: Place, worker: Hand) -> None:
    stream = room.contract.workers.Connect()
    await stream.write(pb.ConnectRequest(credit=1))
    with refused(ErrorDetail.INVALID_ARGUMENT, "hello"):
        await stream.read()
    stream = room.contract.workers.Connect()
    types = [pb.ServedType(name=room.type)]
    hello = pb.Hello(
        worker=pb.RegisterRequest(namespace=room.namespace, task_queue=room.queue, instance=new_id(), types=types)
    )
    await stream.write(pb.ConnectRequest(hello=hello, credit=3))
    run_ids = [await room.start() for _ in range(3)]
    tasks: dict[str, pb.Held] = {}
    while len(tasks) < 3:
        frame = cast("pb.ConnectResponse", await stream.read())
        tasks.update({task.run_id: held(task) for task in frame.deliveries})
    document, nothing, good = (tasks[run_id] for run_id in run_ids)
    operations = [
        _operation(1, document, set_state=pb.SetState(state_json="{", number=1)),
        _operation(2, nothing),
        _operation(3, pb.Held(run_id=good.run_id, claim_token="7"), complete=pb.Complete()),
        _operation(4, document, complete=pb.Complete()),
        _operation(5, good, complete=pb.Complete()),
    ]
    await stream.write(pb.ConnectRequest(operations=operations, delivered=list(tasks.values())))
    answers: dict[int, pb.Answer] = {}
    while len(answers) < 5:
        frame = cast("pb.ConnectResponse", await stream.read())
        answers.update({answer.number: answer for answer in frame.answers})
    assert answers[1].refused.field == "set_state.state_json"
    assert answers[2].refused.code == ErrorDetail.UNIMPLEMENTED
    assert answers[3].refused.code == ErrorDetail.INVALID_ARGUMENT
    assert answers[4].refused.code == ErrorDetail.PREDECESSOR_REFUSED
    assert answers[5].end.status == COMPLETED
    stream.cancel()


def _operation(number: int, run: pb.Held, **body: Any) -> pb.Operation:
    return pb.Operation(number=number, run_id=run.run_id, claim_token=run.claim_token, **body)
