"""`client.automations`: looks at automations and acts on them, by name. Everything it asks for is safe to ask again."""

from __future__ import annotations

import builtins
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import uuid_utils
from google.protobuf.message import Message

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.sdk import option
from kagzi.sdk.automation_info import (
    AutomationInfo,
    AutomationStatus,
    DeliveryStatus,
    EventInfo,
    InputInfo,
    InputStatus,
    Lineage,
    MutationInfo,
    Published,
    SkippedInput,
)
from kagzi.sdk.automation_reading import (
    automation_info,
    caused_run,
    event_info,
    input_info,
    mutation_info,
    word,
)
from kagzi.sdk.descriptions import Decode
from kagzi.sdk.errors import ConfigError
from kagzi.sdk.inputs import Input
from kagzi.sdk.reach import Reach

M = TypeVar("M", bound=Message)

Resolution = Literal["happened", "did_not", "skip", "check_again"]

_RESOLUTIONS: dict[str, pb.ResolveMutationRequest.Resolution.ValueType] = {
    "happened": pb.ResolveMutationRequest.RESOLUTION_HAPPENED,
    "did_not": pb.ResolveMutationRequest.RESOLUTION_DID_NOT,
    "skip": pb.ResolveMutationRequest.RESOLUTION_SKIP,
    "check_again": pb.ResolveMutationRequest.RESOLUTION_CHECK_AGAIN,
}
_PAGE = 100
# Fields that are called otherwise where they are given.
_CALLED = {"event_id": "id"}


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to be published from outside."""

    # One topic, or several of which each gets it.
    topic: str | Sequence[str]
    # Unique within a topic.
    id: str
    payload: Any = None
    # What it came from, and what that is called for people.
    input: Input | None = None
    input_title: str = ""


class Automations:
    """The automations of a client's namespace."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    async def list(
        self, *, status: str | Sequence[str] | None = None, limit: int | None = None
    ) -> AsyncIterator[AutomationInfo]:
        """Automations by name, without handlers and backlog; `status` filters: ACTIVE, PAUSED, BLOCKED."""
        asked = self._asked(
            pb.ListAutomationsRequest, statuses=_statuses(pb.AutomationStatus, AutomationStatus, status)
        )
        left = sys.maxsize if limit is None else limit
        while left > 0:
            asked.page_size = min(left, _PAGE)
            page = await self._reach.look(lambda server: server.automations.ListAutomations, asked)
            for found in page.automations:
                yield self._info(found)
            asked.page_token = page.next_page_token
            left = left - len(page.automations) if asked.page_token else 0

    async def get(self, name: str, *, state_of: str = "") -> AutomationInfo:
        """One automation: handlers, backlog, what stops it, when it moves next; and the state of one handler."""
        asked = self._asked(pb.GetAutomationRequest, name=name, state_of=state_of)
        found = await self._reach.look(lambda server: server.automations.GetAutomation, asked)
        return self._info(found.automation)

    async def run_now(self, name: str) -> AutomationInfo:
        """Queues all producers. PreconditionFailed while a handler runs."""
        asked = self._asked(pb.RunNowRequest, name=name, request_id=str(uuid_utils.uuid4()))
        return self._info((await self._reach.change(lambda server: server.automations.RunNow, asked)).automation)

    async def pause(self, name: str) -> AutomationInfo:
        """Lets the current run finish and starts no other; what comes up meanwhile is kept."""
        asked = self._asked(pb.PauseAutomationRequest, name=name)
        answer = await self._reach.change(lambda server: server.automations.PauseAutomation, asked)
        return self._info(answer.automation)

    async def resume(self, name: str) -> AutomationInfo:
        """Goes on with what came up meanwhile."""
        asked = self._asked(pb.ResumeAutomationRequest, name=name)
        answer = await self._reach.change(lambda server: server.automations.ResumeAutomation, asked)
        return self._info(answer.automation)

    async def retry_blocked(self, name: str, *, run_id: str = "") -> AutomationInfo:
        """Unblocks it and tries the failed handler again; with `run_id` only if that run is what blocks it.
        PreconditionFailed when a mutation is indeterminate: `resolve_mutation` settles that.
        """
        asked = self._asked(pb.RetryBlockedRequest, name=name, run_id=run_id)
        answer = await self._reach.change(lambda server: server.automations.RetryBlocked, asked)
        return self._info(answer.automation)

    async def resolve_mutation(
        self, name: str, mutation_id: str, resolution: Resolution, result: Any = None, *, reason: str = ""
    ) -> MutationInfo:
        """Says what became of a mutation whose outcome nobody knows: it happened, with this result; it did not, and its
        events are given back; skip it and go on; or check again with the reconciler.
        """
        if resolution not in _RESOLUTIONS:
            raise ConfigError(f"resolution={resolution!r} must be one of {', '.join(map(repr, _RESOLUTIONS))}.")
        if result is not None and resolution != "happened":
            raise ConfigError(f"result= goes with resolution='happened', and not with {resolution!r}.")
        asked = self._asked(
            pb.ResolveMutationRequest,
            name=name,
            mutation_id=mutation_id,
            resolution=_RESOLUTIONS[resolution],
            reason=reason,
        )
        if result is not None:
            asked.result.CopyFrom(self._reach.encode(result, None, name, "mutation"))
        answer = await self._reach.change(lambda server: server.automations.ResolveMutation, asked)
        return mutation_info(answer.mutation, self._decode(name, "mutation"))

    async def publish(
        self,
        name: str,
        topic: str | Sequence[str],
        *,
        id: str,
        payload: Any = None,
        input: Input | None = None,
        input_title: str = "",
    ) -> Published:
        """Publishes an event from outside to one topic or several. One that exists gets the new payload, and stays
        where it is.
        """
        return await self.publish_many(name, [NewEvent(topic, id, payload, input, input_title)])

    async def publish_many(self, name: str, events: Sequence[NewEvent]) -> Published:
        """Publishes up to 1,000 events from outside, all or none."""
        for event in events:
            if not isinstance(event, NewEvent):
                raise ConfigError(f"events must be NewEvent(topic, id, ...), got {event!r:.80}")
            if event.input is not None and not isinstance(event.input, Input):
                raise ConfigError(f"input must be Input(source, type, id), got {event.input!r:.80}")
        published = [self._publication(name, event) for event in events]
        titles = {event.input: event.input_title for event in events if event.input is not None}
        asked = self._asked(
            pb.PublishRequest,
            name=name,
            inputs=[pb.InputRegistration(key=each.key(), title=title) for each, title in titles.items()],
            events=published,
        )
        answer = await self._reach.change(lambda server: server.automations.Publish, asked)
        status = AutomationStatus(word(pb.AutomationStatus, answer.status, "AUTOMATION_"))
        return Published(answer.created, answer.updated, status)

    async def events(
        self,
        name: str,
        *,
        topic: str = "",
        id: str = "",
        consumer: str = "",
        status: str | Sequence[str] | None = None,
        run_id: str = "",
        payloads: bool = False,
        limit: int | None = None,
    ) -> AsyncIterator[EventInfo]:
        """Events, newest first, with their deliveries. `status` is that of a delivery, to `consumer` if that is given:
        PENDING, RESERVED, CONSUMED, SKIPPED. Payloads only when asked for.
        """
        asked = self._asked(
            pb.ListEventsRequest,
            name=name,
            topic=topic,
            event_id=id,
            consumer=consumer,
            statuses=_statuses(pb.DeliveryStatus, DeliveryStatus, status),
            run_id=run_id,
            include_payloads=payloads,
        )
        decode = self._decode(name, "event")
        left = sys.maxsize if limit is None else limit
        while left > 0:
            asked.page_size = min(left, _PAGE)
            page = await self._reach.look(lambda server: server.automations.ListEvents, asked)
            for found in page.events:
                yield event_info(found, decode)
            asked.page_token = page.next_page_token
            left = left - len(page.events) if asked.page_token else 0

    async def inputs(
        self,
        name: str,
        *,
        source: str = "",
        type: str = "",
        status: str | Sequence[str] | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[InputInfo]:
        """What came from outside, newest first; `status` filters: PENDING, DONE, SKIPPED."""
        asked = self._asked(
            pb.ListInputsRequest,
            name=name,
            source=source,
            type=type,
            statuses=_statuses(pb.InputStatus, InputStatus, status),
        )
        left = sys.maxsize if limit is None else limit
        while left > 0:
            asked.page_size = min(left, _PAGE)
            page = await self._reach.look(lambda server: server.automations.ListInputs, asked)
            for found in page.inputs:
                yield input_info(found)
            asked.page_token = page.next_page_token
            left = left - len(page.inputs) if asked.page_token else 0

    async def input(self, name: str, source: str, type: str, id: str) -> Lineage:
        """One input and everything it caused: what became of this e-mail?"""
        asked = self._asked(pb.GetInputRequest, name=name, key=Input(source, type, id).key())
        found = await self._reach.look(lambda server: server.automations.GetInput, asked)
        decode_event, decode_mutation = self._decode(name, "event"), self._decode(name, "mutation")
        return Lineage(
            input=input_info(found.input),
            events=[event_info(each, decode_event) for each in found.events],
            runs=[caused_run(each) for each in found.runs],
            mutations=[mutation_info(each, decode_mutation) for each in found.mutations],
            truncated=found.truncated,
        )

    async def skip_input(self, name: str, source: str, type: str, id: str) -> SkippedInput:
        """Skips the pending deliveries that an input caused; what a run has is left to it."""
        asked = self._asked(pb.SkipInputRequest, name=name, key=Input(source, type, id).key())
        answer = await self._reach.change(lambda server: server.automations.SkipInput, asked)
        return SkippedInput(input_info(answer.input), answer.skipped, answer.reserved)

    def _info(self, given: pb.Automation) -> AutomationInfo:
        return automation_info(given, self._decode(given.name, "mutation"), self._decode(given.name, "handler"))

    def _decode(self, name: str, role: Literal["event", "mutation", "handler"]) -> Decode:
        return partial(self._reach.decode, annotation=None, workflow_type=name, role=role)

    def _asked(self, kind: builtins.type[M], **given: Any) -> M:
        """A request; ConfigError names what is no text and should be."""
        for field in kind.DESCRIPTOR.fields:
            if field.type == field.TYPE_STRING and field.name in given:
                option.text(given[field.name], _CALLED.get(field.name, field.name))
        return kind(namespace=self._reach.namespace, **given)

    def _publication(self, name: str, event: NewEvent) -> pb.EventPublication:
        several = isinstance(event.topic, Iterable) and not isinstance(event.topic, str)
        topics = [option.text(topic, "topic") for topic in (event.topic if several else [event.topic])]
        option.text(event.id, "id")
        option.text(event.input_title, "input_title")
        return pb.EventPublication(
            topics=topics,
            event_id=event.id,
            payload=None if event.payload is None else self._reach.encode(event.payload, Any, name, "event"),
            input=None if event.input is None else event.input.key(),
        )


def _statuses(wire: Any, ours: Any, given: str | Sequence[str] | None) -> list[Any]:
    names = [given] if isinstance(given, str) else list(given or ())
    prefix = {AutomationStatus: "AUTOMATION_", DeliveryStatus: "DELIVERY_", InputStatus: "INPUT_"}[ours]
    for name in names:
        if name not in ours.__members__:
            raise ConfigError(f"status={name!r} must be one of {', '.join(ours)}.")
    return [wire.Value(f"{prefix}{name}") for name in names]
