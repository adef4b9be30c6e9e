"""Every route of the HTTP API and the call of the contract behind it. A name in the path or the query is a field of the
request, or leads to one by `fields`; what is left of a request stands in the body, or in the query where a request has
no body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Route:
    """One route."""

    verb: str
    path: str
    rpc: str
    # Names that are not the field's own, as {"source": "key.source"}.
    fields: Mapping[str, str] = field(default_factory=dict)
    # Fields that this route does not offer, because another does.
    without: frozenset[str] = frozenset()

    @property
    def status(self) -> int:
        """What an answer that made something new comes with."""
        return 201 if self.rpc.partition(".")[2] in _CREATES else 200

    @property
    def tag(self) -> str:
        """The noun it is about."""
        return self.path.split("/")[1]


_CREATES = {"StartWorkflow", "RetryWorkflow", "ForkWorkflow", "CreateSchedule", "CreateNamespace", "CreateKey"}
_KEY = {"source": "key.source", "type": "key.type", "id": "key.id"}

ROUTES = (
    Route("POST", "/runs", "WorkflowService.StartWorkflow"),
    Route("GET", "/runs", "WorkflowService.ListWorkflows"),
    Route("POST", "/runs/batch", "WorkflowService.StartWorkflows"),
    Route("GET", "/runs/find", "WorkflowService.GetWorkflowByExternalId"),
    Route("POST", "/runs/signal", "WorkflowService.SignalWorkflow", without=frozenset({"run_id"})),
    Route("GET", "/runs/{run_id}", "WorkflowService.GetWorkflow"),
    Route("POST", "/runs/{run_id}/cancel", "WorkflowService.CancelWorkflow"),
    Route("POST", "/runs/{run_id}/terminate", "WorkflowService.TerminateWorkflow"),
    Route("POST", "/runs/{run_id}/retry", "WorkflowService.RetryWorkflow"),
    Route("POST", "/runs/{run_id}/fork", "WorkflowService.ForkWorkflow"),
    Route("POST", "/runs/{run_id}/resume", "WorkflowService.ResumeWorkflow"),
    Route("POST", "/runs/{run_id}/signal", "WorkflowService.SignalWorkflow", without=frozenset({"external_id"})),
    Route("GET", "/runs/{run_id}/explain", "AdminService.ExplainRun"),
    Route("GET", "/runs/{run_id}/steps", "AdminService.ListSteps"),
    Route("GET", "/runs/{run_id}/attempts/{attempt_id}", "AdminService.GetStep", without=frozenset({"step_id"})),
    Route("POST", "/runs/{run_id}/steps/{step_id:path}/resolve", "WorkflowService.ResolveStep"),
    Route("GET", "/runs/{run_id}/steps/{step_id:path}", "AdminService.GetStep", without=frozenset({"attempt_id"})),
    Route("POST", "/schedules", "WorkflowScheduleService.CreateSchedule"),
    Route("GET", "/schedules", "WorkflowScheduleService.ListSchedules"),
    Route("POST", "/schedules/preview", "WorkflowScheduleService.PreviewSchedule"),
    Route("POST", "/schedules/{schedule_id:path}/pause", "WorkflowScheduleService.PauseSchedule"),
    Route("POST", "/schedules/{schedule_id:path}/resume", "WorkflowScheduleService.ResumeSchedule"),
    Route("POST", "/schedules/{schedule_id:path}/trigger", "WorkflowScheduleService.TriggerSchedule"),
    Route("POST", "/schedules/{schedule_id:path}/backfill", "WorkflowScheduleService.BackfillSchedule"),
    Route(
        "GET",
        "/schedules/{schedule_id:path}/next",
        "WorkflowScheduleService.PreviewSchedule",
        without=frozenset({"proposal"}),
    ),
    Route(
        "GET",
        "/schedules/{schedule_id:path}/runs",
        "WorkflowScheduleService.ListScheduleRuns",
        without=frozenset({"template_run_id"}),
    ),
    Route("GET", "/schedules/{schedule_id:path}", "WorkflowScheduleService.GetSchedule"),
    Route("PATCH", "/schedules/{schedule_id:path}", "WorkflowScheduleService.UpdateSchedule"),
    Route("DELETE", "/schedules/{schedule_id:path}", "WorkflowScheduleService.DeleteSchedule"),
    Route("GET", "/automations", "AutomationService.ListAutomations"),
    Route("POST", "/automations/{name:path}/run-now", "AutomationService.RunNow"),
    Route("POST", "/automations/{name:path}/pause", "AutomationService.PauseAutomation"),
    Route("POST", "/automations/{name:path}/resume", "AutomationService.ResumeAutomation"),
    Route("POST", "/automations/{name:path}/retry", "AutomationService.RetryBlocked"),
    Route("POST", "/automations/{name:path}/mutations/{mutation_id}/resolve", "AutomationService.ResolveMutation"),
    Route("POST", "/automations/{name:path}/events", "AutomationService.Publish"),
    Route("GET", "/automations/{name:path}/events", "AutomationService.ListEvents"),
    Route("GET", "/automations/{name:path}/inputs", "AutomationService.ListInputs"),
    Route("GET", "/automations/{name:path}/input", "AutomationService.GetInput", fields=_KEY),
    Route("POST", "/automations/{name:path}/input/skip", "AutomationService.SkipInput"),
    Route("GET", "/automations/{name:path}", "AutomationService.GetAutomation"),
    Route("GET", "/workers", "AdminService.ListWorkers"),
    Route("GET", "/workers/{worker_id}", "AdminService.GetWorker"),
    Route("POST", "/workers/{worker_id}/drain", "AdminService.DrainWorker"),
    Route("GET", "/queues", "AdminService.GetQueueDepth"),
    Route("GET", "/types", "AdminService.ListWorkflowTypes"),
    Route("GET", "/stats", "AdminService.GetStats"),
    Route("GET", "/server", "AdminService.GetServerInfo"),
    Route("GET", "/health", "AdminService.HealthCheck"),
    Route("POST", "/namespaces", "NamespaceService.CreateNamespace"),
    Route("GET", "/namespaces", "NamespaceService.ListNamespaces"),
    Route("POST", "/namespaces/{name:path}/enable", "NamespaceService.EnableNamespace"),
    Route("POST", "/namespaces/{name:path}/disable", "NamespaceService.DisableNamespace"),
    Route("GET", "/namespaces/{name:path}", "NamespaceService.GetNamespace"),
    Route("PATCH", "/namespaces/{name:path}", "NamespaceService.UpdateNamespace"),
    Route("POST", "/keys", "NamespaceService.CreateKey"),
    Route("GET", "/keys", "NamespaceService.ListKeys"),
    Route("DELETE", "/keys/{key_id}", "NamespaceService.RevokeKey"),
)
# Calls that are no part of the HTTP API: workers make these, and the ends of runs are told by /runs/{run_id}/result.
APART = frozenset({"AutomationService.DeployAutomation", "WorkflowService.WatchWorkflows"})
