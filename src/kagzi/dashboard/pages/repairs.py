"""What people do with a run: start, cancel, terminate, retry, fork, resume, signal, and say what became of a step. Each
makes the same call as the API and goes to where its effect is seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kagzi.dashboard.pages.forms import identity, value
from kagzi.dashboard.pages.visit import Visit
from kagzi.dashboard.problems import Problem

Fields = Mapping[str, str]


async def start(visit: Visit, fields: Fields) -> str:
    """Starts a run."""
    told = await visit.ask(
        "WorkflowService.StartWorkflow",
        run_id=identity(fields),
        workflow_type=fields.get("workflow_type", "").strip(),
        task_queue=fields.get("task_queue", "").strip(),
        external_id=fields.get("external_id", "").strip(),
        input=value(fields, "input"),
        on_conflict="REJECT",
    )
    return visit.link(f"/runs/{told['run_id']}", done="started")


async def cancel(visit: Visit, fields: Fields) -> str:
    """Asks a run to end."""
    await visit.ask("WorkflowService.CancelWorkflow", run_id=_run(visit), reason=fields.get("reason", ""))
    return _back(visit, "cancel")


async def terminate(visit: Visit, fields: Fields) -> str:
    """Ends a run now."""
    await visit.ask("WorkflowService.TerminateWorkflow", run_id=_run(visit), reason=fields.get("reason", ""))
    return _back(visit, "terminate")


async def retry(visit: Visit, fields: Fields) -> str:
    """Starts a run anew before the step that failed."""
    told = await visit.ask("WorkflowService.RetryWorkflow", run_id=_run(visit), new_run_id=identity(fields))
    return visit.link(f"/runs/{told['run_id']}", done="started")


async def fork(visit: Visit, fields: Fields) -> str:
    """Starts a run anew before any step, with another input or other outputs."""
    outputs = value(fields, "outputs")
    if outputs is not None and not isinstance(outputs, dict):
        raise Problem("INVALID_ARGUMENT", 'outputs are given by step, as {"charge": 5}', field="outputs")
    told = await visit.ask(
        "WorkflowService.ForkWorkflow",
        run_id=_run(visit),
        step_id=fields.get("step", ""),
        input=value(fields, "input"),
        outputs=outputs,
        new_run_id=identity(fields),
    )
    return visit.link(f"/runs/{told['run_id']}", done="started")


async def resume(visit: Visit, _: Fields) -> str:
    """Lets a parked run go on."""
    await visit.ask("WorkflowService.ResumeWorkflow", run_id=_run(visit))
    return _back(visit, "resume")


async def signal(visit: Visit, fields: Fields) -> str:
    """Sends a message to a run."""
    await visit.ask(
        "WorkflowService.SignalWorkflow",
        run_id=_run(visit),
        name=fields.get("name", ""),
        payload=value(fields, "payload"),
        signal_id=identity(fields),
    )
    return _back(visit, "signal")


async def resolve(visit: Visit, fields: Fields) -> str:
    """Says what became of a step whose outcome is unknown."""
    resolution = fields.get("resolution", "")
    if resolution not in {"APPLIED", "NOT_APPLIED", "FAIL"}:
        raise Problem("INVALID_ARGUMENT", "say what became of the step", field="resolution")
    asked: dict[str, Any] = {"run_id": _run(visit), "step_id": fields.get("step", ""), "resolution": resolution}
    if resolution == "APPLIED":
        # A step that returned nothing has a result all the same: null.
        result = value(fields, "result")
        asked["result"] = {"$encoding": "json", "$data": "bnVsbA=="} if result is None else result
    if resolution == "FAIL":
        asked["reason"] = fields.get("reason", "")
    await visit.ask("WorkflowService.ResolveStep", **asked)
    return _back(visit, "resolve")


def _run(visit: Visit) -> str:
    run_id: str = visit.request.path_params["run_id"]
    return run_id


def _back(visit: Visit, done: str) -> str:
    return visit.link(f"/runs/{_run(visit)}", done=done)
