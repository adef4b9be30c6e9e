"""What the shell offers when a person presses Tab: words that are always the same, and names that the server knows. It
never fails and never keeps a person waiting: where no server answers at once, nothing is offered.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import typer

Offer = Callable[[typer.Context, str], list[str]]

SHELLS = ("bash", "zsh", "fish")
# Set by the scripts of `kagzi completion` when they ask.
VARIABLE = "_KAGZI_COMPLETE"
_PATIENCE = 0.5
_MOST = 100


def words(*known: str) -> Offer:
    """These words, in small letters if it was begun so."""

    def offer(_: typer.Context, incomplete: str) -> list[str]:
        shown = [word.lower() for word in known] if incomplete.islower() else known
        return [word for word in shown if word.startswith(incomplete)]

    return offer


def named(rpc: str, field: str, key: str) -> Offer:
    """What a list of the server holds, by this key of its entries."""

    def offer(ctx: typer.Context, incomplete: str) -> list[str]:
        found = [entry[key] for entry in _listed(ctx, rpc, field)]
        return sorted({name for name in found if name.startswith(incomplete)})

    return offer


RUN_STATUS = words("PENDING", "RUNNING", "SLEEPING", "COMPLETED", "FAILED", "CANCELLED")
TYPES = named("AdminService.ListWorkflowTypes", "types", "workflow_type")
QUEUES = named("AdminService.ListWorkflowTypes", "types", "task_queue")
SCHEDULES = named("WorkflowScheduleService.ListSchedules", "schedules", "schedule_id")
AUTOMATIONS = named("AutomationService.ListAutomations", "automations", "name")
WORKERS = named("AdminService.ListWorkers", "workers", "worker_id")
NAMESPACES = named("NamespaceService.ListNamespaces", "namespaces", "name")
RUNS = named("WorkflowService.ListWorkflows", "runs", "run_id")


def asked() -> bool:
    """Whether a shell asks, rather than a person."""
    return VARIABLE in os.environ


def _listed(ctx: typer.Context, rpc: str, field: str) -> list[dict[str, Any]]:
    from kagzi.cli.asking import Asking

    try:
        asking = Asking(ctx.params.get("url"), ctx.params.get("namespace"), patience=_PATIENCE)
        try:
            return asking.each(rpc, field, _MOST)
        finally:
            asking.close()
    except Exception:  # noqa: BLE001 - a defect here would be written into the line that somebody types
        return []
