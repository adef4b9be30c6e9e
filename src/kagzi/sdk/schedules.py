"""`client.schedules`: workflows that start by themselves. A handle holds nothing but ids, so handles are free to
make and to forget. Every change is recognised when it is repeated.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Unpack

import uuid_utils

from kagzi.protocol.v1 import schedule_pb2 as pb
from kagzi.protocol.v1.common_pb2 import PAUSED, SCHEDULED, Payload
from kagzi.sdk import listing
from kagzi.sdk import schedule_request as requests
from kagzi.sdk.definition import Workflow
from kagzi.sdk.descriptions import RunInfo, run_info
from kagzi.sdk.errors import ConfigError, NotFound
from kagzi.sdk.handle import Handle
from kagzi.sdk.reach import Reach
from kagzi.sdk.schedule_info import (
    BACKFILL_OVERLAPS,
    Backfill,
    BackfillOverlap,
    Preview,
    ScheduleInfo,
    preview,
    schedule_info,
)
from kagzi.sdk.schedule_request import ScheduleChanges, ScheduleOptions, Times, TriggerOptions

_PAGE = 100


class Schedules:
    """The schedules of a namespace."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    async def create(
        self, id: str, workflow: Workflow[Any, Any] | str, input: Any = None, **options: Unpack[ScheduleOptions]
    ) -> ScheduleHandle:
        """Creates a schedule that starts a workflow with this input: by `cron`, `every` so often, or `text` in words.

        Options: `timezone`, `start_at`, `end_at`, `jitter`, `max_runs`, `overlap` ("allow", "skip", "queue_one",
        "cancel_previous"), `max_catchup`, `paused`, and of its runs `queue`, `version`, `priority`, `labels`,
        `timeout`, `retry`. Conflict when another schedule has the id.
        """
        request = requests.create(self._reach.namespace, id, workflow, input, self._encode, **options)
        await self._reach.change(lambda server: server.schedules.CreateSchedule, request)
        return ScheduleHandle(self._reach, id, request.template_run_id)

    def handle(self, id: str) -> ScheduleHandle:
        """The handle of a schedule; nothing is asked of the server."""
        return ScheduleHandle(self._reach, id)

    async def get(self, id: str) -> ScheduleInfo:
        """A schedule with its input. NotFound when there is none of this id."""
        return await self.handle(id).describe()

    async def list(
        self,
        *,
        status: str | None = None,
        type: str | Workflow[Any, Any] | None = None,
        queue: str | None = None,
        labels: Mapping[str, str] | None = None,
        broken: bool = False,
        limit: int | None = None,
    ) -> AsyncIterator[ScheduleInfo]:
        """Schedules by id, paused ones too, without inputs; at most `limit`. `broken`: only those that cannot fire."""
        statuses = {None: 0, "SCHEDULED": SCHEDULED, "PAUSED": PAUSED}
        if status not in statuses:
            raise ConfigError(f"status={status!r} must be 'SCHEDULED' or 'PAUSED'.")
        request = pb.ListSchedulesRequest(
            namespace=self._reach.namespace,
            status=statuses[status],  # type: ignore[arg-type]  # 0 is the unspecified one
            workflow_type=type.name if isinstance(type, Workflow) else type or "",
            task_queue=queue or "",
            labels=labels or {},
            broken=broken,
        )
        left = sys.maxsize if limit is None else limit
        while left > 0:
            request.page_size = min(left, _PAGE)
            page = await self._reach.look(lambda server: server.schedules.ListSchedules, request)
            for schedule in page.schedules:
                yield schedule_info(schedule, _decode(self._reach, schedule.workflow_type))
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token
            left -= len(page.schedules)

    async def preview(self, count: int = 10, *, after: datetime | None = None, **times: Unpack[Times]) -> Preview:
        """When a schedule would fire that need not exist, and what its times mean in words."""
        request = pb.PreviewScheduleRequest(
            namespace=self._reach.namespace, proposal=requests.proposal(times), count=count
        )
        if after is not None:
            request.after.CopyFrom(requests.moment("after", after))
        return preview(await self._reach.look(lambda server: server.schedules.PreviewSchedule, request))

    def _encode(self, declared: Workflow[Any, Any] | None, workflow_type: str, value: Any) -> Payload:
        return self._reach.encode(value, declared.input if declared else None, workflow_type, "input")


class ScheduleHandle:
    """One schedule. Made by `client.schedules.create(...)` and `client.schedules.handle(id)`."""

    def __init__(self, reach: Reach, id: str, template_run_id: str | None = None) -> None:
        if not isinstance(id, str) or not id:
            raise ConfigError(f"{id!r} is no id of a schedule: that is the text it was created with.")
        self.id = id
        # What its runs carry; as far as this handle has seen it.
        self.template_run_id = template_run_id
        self._reach = reach

    def __repr__(self) -> str:
        return f"<ScheduleHandle of {self.id!r}>"

    async def describe(self) -> ScheduleInfo:
        """How the schedule is now, with its input."""
        request = pb.GetScheduleRequest(namespace=self._reach.namespace, schedule_id=self.id)
        found = (await self._reach.look(lambda server: server.schedules.GetSchedule, request)).schedule
        return self._info(found)

    async def pause(self, reason: str = "") -> ScheduleInfo:
        """Stops firing, until it is resumed."""
        request = pb.PauseScheduleRequest(namespace=self._reach.namespace, schedule_id=self.id, reason=reason)
        return self._info((await self._reach.change(lambda server: server.schedules.PauseSchedule, request)).schedule)

    async def resume(self) -> ScheduleInfo:
        """Fires again from the next slot; those of the pause are skipped."""
        request = pb.ResumeScheduleRequest(namespace=self._reach.namespace, schedule_id=self.id)
        return self._info((await self._reach.change(lambda server: server.schedules.ResumeSchedule, request)).schedule)

    async def update(self, **changes: Unpack[ScheduleChanges]) -> ScheduleInfo:
        """Changes what is given, with the options of `create`, and leaves the rest; a change of times takes effect from
        now. None takes `start_at`, `end_at`, `timeout`, `retry` or `input` away; `enabled` pauses and resumes.
        """
        workflow_type = ""
        if changes.get("input") is not None and changes.get("workflow") is None:
            # Codecs bind a value to the workflow's type.
            workflow_type = (await self.describe()).type
        request = requests.update(self._reach.namespace, self.id, workflow_type, self._encode, **changes)
        return self._info((await self._reach.change(lambda server: server.schedules.UpdateSchedule, request)).schedule)

    async def delete(self) -> str:
        """Removes the schedule; its runs stay as they are, and this handle's `history` still finds them. Answers the
        template run id, by which others find them: `history(template_run_id=...)`.
        """
        found = await self.describe()
        request = pb.DeleteScheduleRequest(
            namespace=self._reach.namespace, schedule_id=self.id, template_run_id=found.template_run_id
        )
        # It was there a moment ago: now it is gone, by an earlier try whose answer was lost, or by somebody else.
        with contextlib.suppress(NotFound):
            await self._reach.change(lambda server: server.schedules.DeleteSchedule, request)
        return found.template_run_id

    async def trigger(self, **options: Unpack[TriggerOptions]) -> Handle[Any] | None:
        """Starts one run now, also of a paused schedule; None when the previous one has not ended and the policy leaves
        it out. Options: `input` and `overlap` instead of the schedule's, `run_id`.
        """
        requests.check(options, TriggerOptions)
        request = pb.TriggerScheduleRequest(
            namespace=self._reach.namespace,
            schedule_id=self.id,
            run_id=options.get("run_id") or str(uuid_utils.uuid7()),
        )
        policy = options.get("overlap")
        if policy is not None:
            request.overlap = requests.overlap(policy)
        if options.get("input") is not None:
            workflow_type = (await self.describe()).type
            request.input.CopyFrom(self._encode(None, workflow_type, options["input"]))
        answer = await self._reach.change(lambda server: server.schedules.TriggerSchedule, request)
        return None if answer.skipped else Handle(self._reach, answer.run_id)

    async def next_fires(self, count: int = 10, *, after: datetime | None = None) -> list[datetime]:
        """The next slots, in the schedule's time zone; of a paused one as if it were resumed."""
        request = pb.PreviewScheduleRequest(namespace=self._reach.namespace, schedule_id=self.id, count=count)
        if after is not None:
            request.after.CopyFrom(requests.moment("after", after))
        answer = await self._reach.look(lambda server: server.schedules.PreviewSchedule, request)
        return list(preview(answer).fires)

    async def backfill(
        self,
        since: datetime,
        until: datetime | None = None,
        *,
        overlap: BackfillOverlap = "allow",
        dry_run: bool = False,
    ) -> Backfill:
        """Starts the runs of past slots that have none, from `since` to before `until` (now when not given); in a dry
        run it only says which. They run all at once, one after another with `overlap="queue_all"`; under the other
        policies the slots count as due now, and only the newest fit.
        """
        request = pb.BackfillScheduleRequest(
            namespace=self._reach.namespace,
            schedule_id=self.id,
            since=requests.moment("since", since),
            until=None if until is None else requests.moment("until", until),
            dry_run=dry_run,
            overlap=requests.overlap(overlap, BACKFILL_OVERLAPS),
        )
        runs: dict[datetime, str | None] = {}
        started = existed = 0
        skipped: list[datetime] = []
        while True:
            answer = await self._reach.change(lambda server: server.schedules.BackfillSchedule, request)
            runs |= {slot.scheduled_for.ToDatetime(UTC): slot.run_id or None for slot in answer.slots}
            started += answer.started
            existed += answer.already_exist
            skipped += [slot.scheduled_for.ToDatetime(UTC) for slot in answer.slots if slot.skipped]
            if not answer.HasField("continue_from"):
                return Backfill(runs, started, existed, dry_run, tuple(skipped))
            request.since.CopyFrom(answer.continue_from)

    async def history(
        self,
        *,
        status: str | list[str] | None = None,
        limit: int | None = None,
        template_run_id: str | None = None,
    ) -> AsyncIterator[RunInfo]:
        """The runs it has started, newest first, without inputs and outputs; at most `limit`. After it was deleted
        those of the schedule this handle has seen, or of `template_run_id`.
        """
        request = pb.ListScheduleRunsRequest(
            namespace=self._reach.namespace,
            statuses=listing.statuses(status),
            # By the template: a schedule that is deleted meanwhile, or created anew, changes no page.
            template_run_id=template_run_id or await self._template(),
        )
        left = sys.maxsize if limit is None else limit
        while left > 0:
            request.page_size = min(left, _PAGE)
            page = await self._reach.look(lambda server: server.schedules.ListScheduleRuns, request)
            for run in page.runs:
                decode = partial(self._reach.decode, annotation=None, workflow_type=run.workflow_type)
                yield run_info(run, partial(decode, role="input"), partial(decode, role="output"))
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token
            left -= len(page.runs)

    async def _template(self) -> str:
        """The template of the schedule, or after its end the one that was seen last."""
        try:
            return (await self.describe()).template_run_id
        except NotFound:
            if self.template_run_id is None:
                raise
            return self.template_run_id

    def _info(self, schedule: pb.Schedule) -> ScheduleInfo:
        self.template_run_id = schedule.template_run_id
        return schedule_info(schedule, _decode(self._reach, schedule.workflow_type))

    def _encode(self, declared: Workflow[Any, Any] | None, workflow_type: str, value: Any) -> Payload:
        return self._reach.encode(value, declared.input if declared else None, workflow_type, "input")


def _decode(reach: Reach, workflow_type: str) -> Any:
    return partial(reach.decode, annotation=None, workflow_type=workflow_type, role="input")
