"""Which role each call needs. A call that is not in the table is open to nobody, and a test fails the build for it.
Each role includes the ones before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from kagzi.protocol.v1 import namespace_pb2 as pb


class Role(IntEnum):
    """What the holder of a key may do, in the numbers of the contract. ANYBODY needs no key."""

    ANYBODY = pb.KEY_ROLE_UNSPECIFIED
    READER = pb.KEY_READER
    CLIENT = pb.KEY_CLIENT
    WORKER = pb.KEY_WORKER
    ADMIN = pb.KEY_ADMIN


_TABLE: Mapping[str, Mapping[Role, str]] = {
    "kagzi.v1.WorkflowService": {
        Role.READER: "GetWorkflow GetWorkflowByExternalId ListWorkflows WatchWorkflows",
        Role.CLIENT: (
            "StartWorkflow StartWorkflows CancelWorkflow TerminateWorkflow RetryWorkflow ForkWorkflow ResumeWorkflow "
            "SignalWorkflow ResolveStep"
        ),
    },
    "kagzi.v1.WorkerService": {
        Role.WORKER: (
            "Connect Register Heartbeat Deregister PollTask BeginStep CompleteStep FailStep CompleteWorkflow "
            "FailWorkflow Sleep Suspend Release ReceiveSignal StartChild SetState ContinueAsNew"
        ),
    },
    "kagzi.v1.WorkflowScheduleService": {
        Role.READER: "GetSchedule ListSchedules PreviewSchedule ListScheduleRuns",
        Role.CLIENT: (
            "CreateSchedule UpdateSchedule DeleteSchedule PauseSchedule ResumeSchedule TriggerSchedule BackfillSchedule"
        ),
    },
    "kagzi.v1.AdminService": {
        # Says how the server does and nothing of anybody's work; load balancers have no keys.
        Role.ANYBODY: "HealthCheck",
        Role.READER: (
            "ListWorkers GetWorker GetStep ListSteps GetServerInfo GetStats GetQueueDepth ListWorkflowTypes ExplainRun"
        ),
        Role.ADMIN: "DrainWorker",
    },
    "kagzi.v1.NamespaceService": {
        Role.READER: "GetNamespace ListNamespaces",
        Role.ADMIN: ("CreateNamespace UpdateNamespace EnableNamespace DisableNamespace CreateKey ListKeys RevokeKey"),
    },
    "kagzi.v1.AutomationService": {
        Role.READER: "ListAutomations GetAutomation ListEvents ListInputs GetInput",
        Role.CLIENT: ("RunNow PauseAutomation ResumeAutomation RetryBlocked ResolveMutation Publish SkipInput"),
        Role.WORKER: "DeployAutomation",
    },
    "grpc.health.v1.Health": {Role.ANYBODY: "Check Watch List"},
    "grpc.reflection.v1alpha.ServerReflection": {Role.READER: "ServerReflectionInfo"},
}
# By the full name of a method, as gRPC calls it.
ROLES: Mapping[str, Role] = {
    f"/{service}/{name}": role
    for service, by_role in _TABLE.items()
    for role, names in by_role.items()
    for name in names.split()
}
