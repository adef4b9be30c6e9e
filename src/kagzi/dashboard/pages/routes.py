"""Every page and form of the dashboard and the function behind it."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from kagzi.dashboard.api.reference import Reference
from kagzi.dashboard.pages import automations, many, namespaces, repairs, run, schedules, server, sign, workers
from kagzi.dashboard.pages.frame import Act, Frame, Look
from kagzi.dashboard.pages.overview import overview
from kagzi.dashboard.pages.runs import runs
from kagzi.dashboard.pages.visit import View, Visit
from kagzi.dashboard.problems import Problem

_FOREVER = "public, max-age=31536000, immutable"
_LOOKS: dict[str, Look] = {
    "/": overview,
    "/runs": runs,
    "/runs/{run_id}": run.run,
    "/runs/{run_id}/step": run.step,
    "/schedules": schedules.schedules,
    "/schedules/{schedule_id:path}": schedules.schedule,
    "/automations": automations.automations,
    "/automations/{name:path}/events": automations.events,
    "/automations/{name:path}/input": automations.input_,
    "/automations/{name:path}": automations.automation,
    "/workers": workers.workers,
    "/workers/{worker_id}": workers.worker,
    "/namespaces": namespaces.namespaces,
    "/namespaces/{name:path}": namespaces.namespace,
    "/server": server.server,
    "/signin": sign.look,
}
_ACTS: dict[str, Act] = {
    "/runs": repairs.start,
    "/runs/chosen": many.chosen,
    "/runs/{run_id}/cancel": repairs.cancel,
    "/runs/{run_id}/terminate": repairs.terminate,
    "/runs/{run_id}/retry": repairs.retry,
    "/runs/{run_id}/fork": repairs.fork,
    "/runs/{run_id}/resume": repairs.resume,
    "/runs/{run_id}/signal": repairs.signal,
    "/runs/{run_id}/resolve": repairs.resolve,
    "/schedules": schedules.create,
    "/schedules/{schedule_id:path}/pause": schedules.pause,
    "/schedules/{schedule_id:path}/resume": schedules.resume,
    "/schedules/{schedule_id:path}/trigger": schedules.trigger,
    "/schedules/{schedule_id:path}/backfill": schedules.backfill,
    "/schedules/{schedule_id:path}/delete": schedules.delete,
    "/schedules/{schedule_id:path}": schedules.update,
    "/automations/{name:path}/run-now": automations.run_now,
    "/automations/{name:path}/pause": automations.pause,
    "/automations/{name:path}/resume": automations.resume,
    "/automations/{name:path}/retry": automations.retry,
    "/automations/{name:path}/mutations/{mutation_id}/resolve": automations.resolve,
    "/automations/{name:path}/events": automations.publish,
    "/automations/{name:path}/input/skip": automations.skip,
    "/workers/{worker_id}/drain": workers.drain,
    "/namespaces": namespaces.create,
    "/namespaces/{name:path}/enable": namespaces.enable,
    "/namespaces/{name:path}/disable": namespaces.disable,
    "/namespaces/{name:path}/keys": namespaces.make_key,
    "/namespaces/{name:path}/keys/{key_id}/revoke": namespaces.revoke_key,
    "/namespaces/{name:path}": namespaces.update,
    "/signin": sign.sign_in,
    "/signout": sign.sign_out,
}


def install(app: FastAPI, frame: Frame) -> None:
    """Adds the pages to an application; after everything else, for they end with a page for what is not there."""
    for path, look in {**_LOOKS, "/api/docs": Reference(app).look}.items():
        app.router.add_route(path, frame.show(look), methods=["GET"], include_in_schema=False)
    for path, act in _ACTS.items():
        app.router.add_route(path, frame.do(act), methods=["POST"], include_in_schema=False)
    app.mount("/static", _Static(packages=[("kagzi.dashboard", "static")]))
    app.router.add_route("/{path:path}", frame.show(_nowhere), methods=["GET"], include_in_schema=False)


async def _nowhere(visit: Visit) -> View:
    if visit.path.startswith("/api/"):
        raise HTTPException(404, f"there is nothing at {visit.path}: /api/docs lists what there is")
    raise Problem("NOT_FOUND", f"There is no page at {visit.path}.")


class _Static(StaticFiles):
    """Files whose addresses change with their content."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["cache-control"] = _FOREVER
        return answer
