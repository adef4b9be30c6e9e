"""A good request for every unary call of the contract that this server answers: what the tests of lost leases send with
an old token, and what the tests of bad input spoil one field at a time.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from kagzi.protocol.v1 import admin_pb2 as ad
from kagzi.protocol.v1 import automation_pb2 as au
from kagzi.protocol.v1 import namespace_pb2 as ns
from kagzi.protocol.v1 import schedule_pb2 as sc
from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1 import workflow_pb2 as wf
from kagzi.protocol.v1.common_pb2 import FUNCTION, PENDING, SCHEDULED, STEP_RUNNING, Failure, RetryPolicy
from kagzi.protocol.v1.schedule_pb2 import ScheduleTiming
from tests.conformance.execution import encoded, new_id
from tests.conformance.place import Place

SERVICES: tuple[ServiceDescriptor, ...] = tuple(
    service for file in (wf, pb, ad, ns, sc, au) for service in file.DESCRIPTOR.services_by_name.values()
)

# Calls whose capability comes later. A service stands for all of its calls.
LATER: frozenset[str] = frozenset()
STREAMS = frozenset({"WorkerService/Connect", "WorkflowService/WatchWorkflows"})


def methods() -> list[MethodDescriptor]:
    """Every call of the contract."""
    return [method for service in SERVICES for method in service.methods]


def short(method: MethodDescriptor) -> str:
    """As "WorkerService/Sleep"."""
    return f"{method.containing_service.name}/{method.name}"


def comes_later(method: MethodDescriptor) -> bool:
    return short(method) in LATER or method.containing_service.name in LATER


def of_run(place: Place, run: pb.Held) -> dict[str, Message]:
    """Every call of a worker that writes for a run it holds."""
    place_of: dict[str, Any] = {"namespace": place.namespace, "run": run}
    policy = RetryPolicy(maximum_attempts=2, initial_interval_ms=50, backoff_coefficient=2, maximum_interval_ms=60)
    return {
        "BeginStep": pb.BeginStepRequest(
            **place_of, step=pb.StepStarted(step_id="begin", attempt_id=new_id(), kind=FUNCTION)
        ),
        "CompleteStep": pb.CompleteStepRequest(
            **place_of,
            step=pb.StepCompleted(step_id="complete", attempt_id=new_id(), kind=FUNCTION, output=encoded(1)),
        ),
        "FailStep": pb.FailStepRequest(
            **place_of,
            step=pb.StepFailed(
                step_id="fail",
                attempt_id=new_id(),
                kind=FUNCTION,
                failure=Failure(type="E", retry_after_ms=10),
                retry=policy,
            ),
            operation_id=new_id(),
        ),
        "CompleteWorkflow": pb.CompleteWorkflowRequest(
            **place_of, complete=pb.Complete(output=encoded(1), operation_id=new_id())
        ),
        "FailWorkflow": pb.FailWorkflowRequest(
            **place_of,
            fail=pb.Fail(failure=Failure(type="E", retry_after_ms=10), failed_step_id="fail", operation_id=new_id()),
        ),
        "Sleep": pb.SleepRequest(
            **place_of, step_id="sleep", attempt_id=new_id(), duration_ms=60_000, operation_id=new_id()
        ),
        "Suspend": pb.SuspendRequest(**place_of, suspend=pb.Suspend(step_ids=["begin"], operation_id=new_id())),
        "Release": pb.ReleaseRequest(**place_of, release=pb.Release(operation_id=new_id())),
        "ReceiveSignal": pb.ReceiveSignalRequest(
            **place_of, step_id="receive", attempt_id=new_id(), name="go", timeout_ms=60_000
        ),
        "StartChild": pb.StartChildRequest(
            **place_of,
            start_child=pb.StartChild(
                step_id="child", attempt_id=new_id(), child=place.request(run_id=new_id(), namespace="")
            ),
        ),
        "SetState": pb.SetStateRequest(**place_of, set_state=pb.SetState(state_json='{"a": 1}', number=1)),
        "ContinueAsNew": pb.ContinueAsNewRequest(
            **place_of,
            continue_as_new=pb.ContinueAsNew(new_run_id=new_id(), input=encoded(1), operation_id=new_id()),
        ),
    }


def of_worker(place: Place, worker_id: str, run: pb.Held) -> dict[str, Message]:
    """The other calls of a worker."""
    place_of: dict[str, Any] = {"namespace": place.namespace}
    return {
        "Register": pb.RegisterRequest(
            **place_of,
            task_queue=place.queue,
            instance=new_id(),
            hostname="here",
            version="1",
            types=[pb.ServedType(name=place.type, version="1", definition_hash="a")],
            concurrency=1,
            labels={"a": "b"},
        ),
        "Heartbeat": pb.HeartbeatRequest(**place_of, worker_id=worker_id, held=[run]),
        "Deregister": pb.DeregisterRequest(**place_of, worker_id=worker_id),
        "PollTask": pb.PollTaskRequest(**place_of, worker_id=worker_id),
    }


def of_client(place: Place, run_id: str) -> dict[str, Message]:
    """Every call of WorkflowService."""
    place_of: dict[str, Any] = {"namespace": place.namespace}
    start = place.request(
        1,
        run_id=new_id(),
        external_id="order-1",
        delay_ms=60_000,
        priority=2,
        timeout_ms=60_000,
        version="1",
        labels={"a": "b"},
        parent_run_id=run_id,
        parent_step_attempt_id=new_id(),
        retry=RetryPolicy(maximum_attempts=2, initial_interval_ms=50, backoff_coefficient=2, maximum_interval_ms=60),
    )
    return {
        "StartWorkflow": start,
        "StartWorkflows": wf.StartWorkflowsRequest(**place_of),
        "GetWorkflow": wf.GetWorkflowRequest(**place_of, run_id=run_id),
        "GetWorkflowByExternalId": wf.GetWorkflowByExternalIdRequest(**place_of, external_id="order-1"),
        "ListWorkflows": wf.ListWorkflowsRequest(
            **place_of,
            statuses=[PENDING],
            workflow_type=place.type,
            task_queue=place.queue,
            labels={"a": "b"},
            since=Timestamp(seconds=1),
            until=Timestamp(seconds=2),
            parent_run_id=run_id,
            schedule_id=run_id,
            page_size=1,
        ),
        "CancelWorkflow": wf.CancelWorkflowRequest(**place_of, run_id=run_id, reason="why"),
        "TerminateWorkflow": wf.TerminateWorkflowRequest(**place_of, run_id=run_id, reason="why"),
        "ResumeWorkflow": wf.ResumeWorkflowRequest(**place_of, run_id=run_id),
        "RetryWorkflow": wf.RetryWorkflowRequest(**place_of, run_id=run_id, new_run_id=new_id()),
        "ForkWorkflow": wf.ForkWorkflowRequest(
            **place_of, run_id=run_id, step_id="begin", input=encoded(1), new_run_id=new_id()
        ),
        "ResolveStep": wf.ResolveStepRequest(
            **place_of,
            run_id=run_id,
            step_id="begin",
            resolution=wf.ResolveStepRequest.APPLIED,
            result=encoded(1),
            reason="why",
        ),
        "SignalWorkflow": wf.SignalWorkflowRequest(
            **place_of, run_id=run_id, name="go", payload=encoded(1), signal_id=new_id()
        ),
    }


def of_operator(place: Place, worker_id: str, run_id: str) -> dict[str, Message]:
    """Every call of AdminService."""
    place_of: dict[str, Any] = {"namespace": place.namespace}
    return {
        "ListWorkers": ad.ListWorkersRequest(
            **place_of, statuses=[ad.WORKER_ONLINE], task_queue=place.queue, workflow_type=place.type, page_size=1
        ),
        "GetWorker": ad.GetWorkerRequest(**place_of, worker_id=worker_id),
        "ExplainRun": ad.ExplainRunRequest(**place_of, run_id=run_id),
        "GetStep": ad.GetStepRequest(**place_of, run_id=run_id, step_id="begin"),
        "ListSteps": ad.ListStepsRequest(
            **place_of, run_id=run_id, step_id="begin", statuses=[STEP_RUNNING], page_size=1
        ),
        "HealthCheck": ad.HealthCheckRequest(),
        "GetServerInfo": ad.GetServerInfoRequest(),
        "GetStats": ad.GetStatsRequest(
            **place_of,
            workflow_type=place.type,
            since=Timestamp(seconds=60),
            until=Timestamp(seconds=600),
            step_ms=60_000,
        ),
        "DrainWorker": ad.DrainWorkerRequest(**place_of, worker_id=worker_id),
        "GetQueueDepth": ad.GetQueueDepthRequest(
            **place_of, task_queue=place.queue, workflow_type=place.type, page_size=1
        ),
        "ListWorkflowTypes": ad.ListWorkflowTypesRequest(**place_of, task_queue=place.queue, page_size=1),
    }


def of_everybody(place: Place, worker_id: str, run: pb.Held) -> dict[str, Message]:
    """All of them, by "Service/Call"."""
    by_service = {
        "WorkerService": {**of_run(place, run), **of_worker(place, worker_id, run)},
        "WorkflowService": of_client(place, run.run_id),
        "AdminService": of_operator(place, worker_id, run.run_id),
        "WorkflowScheduleService": of_planner(place),
        "NamespaceService": of_owner(place),
        "AutomationService": of_author(place),
    }
    return {f"{service}/{name}": one for service, calls in by_service.items() for name, one in calls.items()}


def of_author(place: Place) -> dict[str, Message]:
    """Every call of AutomationService."""
    named: dict[str, Any] = {"namespace": place.namespace, "name": "inbox"}
    key = au.InputKey(source="gmail", type="email", id="m1")
    handler = au.HandlerDefinition(
        name="poll",
        kind=au.HANDLER_PRODUCER,
        timing=ScheduleTiming(every_ms=60_000),
        timezone="UTC",
        publishes=["mail"],
    )
    definition = au.AutomationDefinition(name="inbox", definition_hash="1", task_queue=place.queue, handlers=[handler])
    return {
        "DeployAutomation": au.DeployAutomationRequest(
            namespace=place.namespace, definition=definition, deployment_id=new_id()
        ),
        "ListAutomations": au.ListAutomationsRequest(
            namespace=place.namespace, statuses=[au.AUTOMATION_ACTIVE], page_size=1
        ),
        "GetAutomation": au.GetAutomationRequest(**named, state_of="poll"),
        "RunNow": au.RunNowRequest(**named, request_id=new_id()),
        "PauseAutomation": au.PauseAutomationRequest(**named),
        "ResumeAutomation": au.ResumeAutomationRequest(**named),
        "RetryBlocked": au.RetryBlockedRequest(**named),
        "ResolveMutation": au.ResolveMutationRequest(
            **named,
            mutation_id=new_id(),
            resolution=au.ResolveMutationRequest.RESOLUTION_HAPPENED,
            result=encoded(1),
            reason="why",
        ),
        "Publish": au.PublishRequest(
            **named,
            inputs=[au.InputRegistration(key=key, title="An e-mail")],
            events=[au.EventPublication(topics=["mail"], event_id="m1", payload=encoded(1), input=key)],
        ),
        "ListEvents": au.ListEventsRequest(
            **named, topic="mail", event_id="m1", consumer="add", statuses=[au.DELIVERY_PENDING], page_size=1
        ),
        "ListInputs": au.ListInputsRequest(
            **named, source="gmail", type="email", statuses=[au.INPUT_PENDING], page_size=1
        ),
        "GetInput": au.GetInputRequest(**named, key=key),
        "SkipInput": au.SkipInputRequest(**named, key=key),
    }


def of_owner(place: Place) -> dict[str, Message]:
    """Every call of NamespaceService."""
    kept = ns.Retention(completed_ms=1, failed_ms=1, cancelled_ms=1, events_ms=1)
    return {
        "CreateNamespace": ns.CreateNamespaceRequest(name=f"{place.namespace}-2", description="d", retention=kept),
        "GetNamespace": ns.GetNamespaceRequest(name=place.namespace),
        "ListNamespaces": ns.ListNamespacesRequest(page_size=1),
        "UpdateNamespace": ns.UpdateNamespaceRequest(name=place.namespace, description="d", retention=kept),
        "EnableNamespace": ns.EnableNamespaceRequest(name=place.namespace),
        "DisableNamespace": ns.DisableNamespaceRequest(name=place.namespace),
        "CreateKey": ns.CreateKeyRequest(
            namespace=place.namespace, key_id=new_id(), name="for tests", role=ns.KEY_READER
        ),
        "ListKeys": ns.ListKeysRequest(namespace=place.namespace, include_revoked=True, page_size=1),
        "RevokeKey": ns.RevokeKeyRequest(namespace=place.namespace, key_id=new_id()),
    }


def of_planner(place: Place) -> dict[str, Message]:
    """Every call of WorkflowScheduleService."""
    place_of: dict[str, Any] = {"namespace": place.namespace}
    one: dict[str, Any] = {**place_of, "schedule_id": "nightly"}
    policy = RetryPolicy(maximum_attempts=2, initial_interval_ms=50, backoff_coefficient=2, maximum_interval_ms=60)
    told: dict[str, Any] = {
        "timing": sc.ScheduleTiming(cron="0 2 * * *"),
        "timezone": "Europe/Berlin",
        "start_at": Timestamp(seconds=4_000_000_000),
        "end_at": Timestamp(seconds=4_100_000_000),
        "jitter_ms": 1_000,
        "max_runs": 7,
        "overlap": sc.OVERLAP_SKIP,
        "max_catchup": 3,
        "workflow_type": place.type,
        "task_queue": place.queue,
        "version": "1",
        "priority": 2,
        "timeout_ms": 60_000,
        "retry": policy,
        "input": encoded(1),
    }
    return {
        "CreateSchedule": sc.CreateScheduleRequest(**one, **told, template_run_id=new_id(), labels={"a": "b"}),
        "GetSchedule": sc.GetScheduleRequest(**one),
        "ListSchedules": sc.ListSchedulesRequest(
            **place_of,
            status=SCHEDULED,
            workflow_type=place.type,
            task_queue=place.queue,
            labels={"a": "b"},
            page_size=1,
        ),
        "UpdateSchedule": sc.UpdateScheduleRequest(**one, **told, labels=sc.ScheduleLabels(labels={"a": "b"})),
        "DeleteSchedule": sc.DeleteScheduleRequest(**one, template_run_id=new_id()),
        "PauseSchedule": sc.PauseScheduleRequest(**one, reason="why"),
        "ResumeSchedule": sc.ResumeScheduleRequest(**one),
        "TriggerSchedule": sc.TriggerScheduleRequest(
            **one, run_id=new_id(), overlap=sc.OVERLAP_ALLOW, input=encoded(1)
        ),
        "BackfillSchedule": sc.BackfillScheduleRequest(
            **one, since=Timestamp(seconds=1_000), until=Timestamp(seconds=2_000)
        ),
        "PreviewSchedule": sc.PreviewScheduleRequest(**one, count=1, after=Timestamp(seconds=1)),
        "ListScheduleRuns": sc.ListScheduleRunsRequest(**one, statuses=[PENDING], page_size=1),
    }
