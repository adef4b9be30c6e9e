"""What people do with many runs at once: retry, cancel or terminate those that were chosen in the list. Each is tried,
whatever became of the others, and whoever asked is told what was not done, and why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kagzi.dashboard import wording, words
from kagzi.dashboard.pages import forms
from kagzi.dashboard.pages.runs import FIELDS
from kagzi.dashboard.pages.visit import View, Visit
from kagzi.dashboard.problems import Problem
from kagzi.sdk.errors import ServerError, Unauthorized, Unavailable

Fields = Mapping[str, str]

# What can be done with them, and how that is said.
ACTIONS = {"retry": "started anew", "cancel": "asked to cancel", "terminate": "terminated"}
# How the fields begin that name them.
_CHOSEN = "run."
_ENDED = {"COMPLETED", "FAILED", "CANCELLED"}
_AT_ONCE = 8
# A server that does not answer is not asked for every one of them.
_BEGIN_WITHIN_SECS = 30.0


async def chosen(visit: Visit, fields: Fields) -> str | View:
    """Does it with each; leads back to the list when all is done, or shows what was not."""
    action = fields.get("action", "")
    # However an id is written, it is one run.
    runs = list(dict.fromkeys(name.removeprefix(_CHOSEN).lower() for name in fields if name.startswith(_CHOSEN)))
    if action not in ACTIONS:
        raise Problem("INVALID_ARGUMENT", f"say what to do with them: {', '.join(ACTIONS)}", field="action")
    if not runs:
        raise Problem("INVALID_ARGUMENT", "no run was chosen: go back, and choose some in the list", field="run")
    why = await _each(runs, lambda run_id: _do(visit, fields, action, run_id))
    filters = {name: visit.query[name] for name in FIELDS if name in visit.query}
    left = {run_id: wording.spoken(reason) for run_id, reason in why.items() if reason}
    if not left:
        return visit.link("/runs", **filters, action=action, changed=str(len(runs)), left="0")
    shown: dict[str, Any] = {"said": ACTIONS[action], "changed": len(runs) - len(left), "left": left}
    return View("many.html", {**shown, "back": visit.link("/runs", **filters)})


async def _each(runs: list[str], do: Callable[[str], Awaitable[str]]) -> dict[str, str]:
    """Does it with some at once; answers why it was not done with each, in the order given."""
    until = time.monotonic() + _BEGIN_WITHIN_SECS
    turns = asyncio.Semaphore(_AT_ONCE)
    refused: list[Unauthorized] = []

    async def one(run_id: str) -> str:
        async with turns:
            if time.monotonic() > until:
                return "it was not tried: the server takes too long to answer"
            try:
                return await do(run_id)
            except Unauthorized as error:
                refused.append(error)
                return error.message
            except Unavailable as error:
                return f"{error.message.rstrip('.')}; it may have been done all the same: look at the run"
            except ServerError as error:
                return error.message

    why = dict(zip(runs, await asyncio.gather(*map(one, runs)), strict=True))
    if len(refused) == len(runs):
        raise refused[0]
    return why


async def _do(visit: Visit, fields: Fields, action: str, run_id: str) -> str:
    """Why it was not done; empty when it was."""
    if action == "retry":
        await visit.ask(
            "WorkflowService.RetryWorkflow", run_id=run_id, new_run_id=forms.identity({**fields, "about": run_id})
        )
        return ""
    # Afterwards nobody can tell whether one that is cancelled was so before.
    status = (await visit.ask("WorkflowService.GetWorkflow", run_id=run_id))["run"]["status"]
    if status not in _ENDED:
        rpc = "WorkflowService.CancelWorkflow" if action == "cancel" else "WorkflowService.TerminateWorkflow"
        status = (await visit.ask(rpc, run_id=run_id))["status"]
        if status not in _ENDED - {"CANCELLED"}:
            return ""
    return f"it had ended already: {words.plain(status)}"
