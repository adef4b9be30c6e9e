"""WorkflowScheduleService: workflows that start by themselves. Each method checks its request, changes one template
under its lock or reads one, and answers; errors are mapped by the interceptor. Firing is not done here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import grpc
import uuid_utils
from asyncpg.connection import Connection

from kagzi.protocol.v1 import schedule_pb2 as pb
from kagzi.protocol.v1.common_pb2 import PAUSED, SCHEDULED, Payload, RunStatus
from kagzi.server.api import checks, drafts
from kagzi.server.api.slots import Slots, key
from kagzi.store import namespaces, rows, schedules, templates
from kagzi.store.errors import Refused, invalid, not_found
from kagzi.store.templates import Template

Context = grpc.aio.ServicerContext[Any, Any]


class Schedules(Slots):
    """Creates, shows and changes schedules."""

    async def CreateSchedule(self, request: pb.CreateScheduleRequest, context: Context) -> pb.CreateScheduleResponse:
        namespace = checks.namespace(request.namespace)
        run_id = checks.uuid(request.template_run_id, "template_run_id", required=False) or str(uuid_utils.uuid7())
        given = checks.payload(request.input, "input") if request.HasField("input") else None

        async def create(connection: Connection) -> Template:
            now = await schedules.clock(connection)
            made = drafts.new(request, namespace, run_id, self._timezone, now)
            return await schedules.create(connection, made, given)

        made = await self._database.transact(create)
        self._announcer.clock(namespace)
        return pb.CreateScheduleResponse(schedule=templates.message(made))

    async def GetSchedule(self, request: pb.GetScheduleRequest, context: Context) -> pb.GetScheduleResponse:
        namespace, schedule_id = key(request)
        found, given, _ = await self._database.read(lambda c: schedules.get(c, namespace, schedule_id))
        return pb.GetScheduleResponse(schedule=templates.message(found, given))

    async def ListSchedules(self, request: pb.ListSchedulesRequest, context: Context) -> pb.ListSchedulesResponse:
        namespace = checks.namespace(request.namespace)
        scope = checks.scope(request, namespace)
        page = checks.page(request.page_size, request.page_token, scope)
        filters = _filters(request)

        async def read(connection: Connection) -> list[Template]:
            await namespaces.get(connection, namespace)
            after = str(page.after[0]) if page.after else None
            return await schedules.list_(connection, namespace, page.size + 1, after=after, **filters)

        found = await self._database.read(read)
        shown = found[: page.size]
        token = checks.page_token(scope, (shown[-1].schedule_id,)) if len(found) > page.size else ""
        return pb.ListSchedulesResponse(schedules=[templates.message(one) for one in shown], next_page_token=token)

    async def UpdateSchedule(self, request: pb.UpdateScheduleRequest, context: Context) -> pb.UpdateScheduleResponse:
        given = checks.payload(request.input, "input") if request.HasField("input") else None
        new_input = given is not None or "input" in request.clear
        drafts.check(request)

        def change(template: Template, now: datetime) -> Template:
            return drafts.changed(template, request, now)

        changed = await self._change(request, change, given, new_input=new_input)
        return pb.UpdateScheduleResponse(schedule=templates.message(changed))

    async def DeleteSchedule(self, request: pb.DeleteScheduleRequest, context: Context) -> pb.DeleteScheduleResponse:
        namespace, schedule_id = key(request)
        wanted = checks.uuid(request.template_run_id, "template_run_id", required=False)

        removed = ""

        async def delete(connection: Connection) -> str:
            nonlocal removed
            try:
                template, _ = await schedules.lock(connection, namespace, schedule_id)
            except Refused:
                if removed:
                    # The answer to the commit was lost: it is gone.
                    return removed
                raise
            if removed and removed != template.run_id:
                # Gone too, and created anew since.
                return removed
            if wanted and wanted != template.run_id:
                raise not_found(f"schedule {schedule_id!r} with the template", wanted, "template_run_id")
            removed = template.run_id
            await schedules.delete(connection, template)
            return removed

        return pb.DeleteScheduleResponse(template_run_id=await self._database.transact(delete))

    async def PauseSchedule(self, request: pb.PauseScheduleRequest, context: Context) -> pb.PauseScheduleResponse:
        reason = checks.text(request.reason, "reason", drafts.REASON_BYTES)
        changed = await self._change(request, lambda template, _: drafts.paused(template, reason))
        return pb.PauseScheduleResponse(schedule=templates.message(changed))

    async def ResumeSchedule(self, request: pb.ResumeScheduleRequest, context: Context) -> pb.ResumeScheduleResponse:
        changed = await self._change(request, drafts.resumed)
        return pb.ResumeScheduleResponse(schedule=templates.message(changed))

    async def _change(
        self,
        request: Any,
        change: Callable[[Template, datetime], Template],
        given: Payload | None = None,
        *,
        new_input: bool = False,
    ) -> Template:
        """Changes one schedule under its lock; one that stays as it was is not written."""
        namespace, schedule_id = key(request)

        async def work(connection: Connection) -> Template:
            template, now = await schedules.lock(connection, namespace, schedule_id)
            changed = change(template, now)
            if changed == template and not new_input:
                return template
            return await schedules.save(connection, changed, given, new_input=new_input)

        changed = await self._database.transact(work)
        self._announcer.clock(namespace)
        return changed


def _filters(request: pb.ListSchedulesRequest) -> dict[str, Any]:
    checks.enum(request.status, RunStatus, "status")
    if request.status not in (0, SCHEDULED, PAUSED):
        raise invalid("status", "a schedule is SCHEDULED or PAUSED; runs are listed with ListWorkflows")
    return {
        "status": rows.RUN_STATUS_NAME[request.status] if request.status else None,
        "workflow_type": checks.name(request.workflow_type, "workflow_type") if request.workflow_type else None,
        "task_queue": checks.name(request.task_queue, "task_queue") if request.task_queue else None,
        "labels": rows.labels_text(checks.labels(request.labels, "labels")),
        "broken": request.broken,
    }
