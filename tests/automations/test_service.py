"""AutomationService as its callers see it: what it shows, what it refuses, and that a repeat changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc
import pytest_asyncio

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1.automation_pb2_grpc import AutomationServiceStub
from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.protocol.v1.schedule_pb2 import ScheduleTiming
from kagzi.server.app import Server
from kagzi.server.settings import Settings
from tests.automations.player import acts, defined, polls
from tests.automations.stage import MAIL, Stage, data, event, new_id
from tests.server.calls import refusal

if TYPE_CHECKING:
    from kagzi.protocol.v1.automation_pb2_grpc import AutomationServiceAsyncStub as Service


@pytest_asyncio.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    """The service of a server that no worker is connected to."""
    server = Server(Settings(server_port=0, timezone="Europe/Berlin"), database_url)
    await server.start()
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield AutomationServiceStub(channel)
    await server.stop(0)


async def _deploy(
    service: Service, *handlers: pb.HandlerDefinition, name: str = "inbox", found: str = "1"
) -> pb.DeployAutomationResponse:
    request = pb.DeployAutomationRequest(definition=defined(*handlers, name=name, found=found), deployment_id=new_id())
    return await service.DeployAutomation(request)


async def _get(service: Service, state_of: str = "") -> pb.Automation:
    return (await service.GetAutomation(pb.GetAutomationRequest(name="inbox", state_of=state_of))).automation


async def test_a_deployment_shows_the_automation_with_its_schedules_in_words(service: Service) -> None:
    cron = pb.HandlerDefinition(
        name="nightly", kind=pb.HANDLER_PRODUCER, timing=ScheduleTiming(cron="30 2 * * *"), publishes=["mail", "lost"]
    )
    made = await _deploy(service, polls(every_ms=300_000), cron, acts(subscribes=["mail", "chat"]))
    assert made.changed
    assert list(made.warnings) == [
        "nobody subscribes to the topic 'lost'",
        "no handler publishes to the topic 'chat'",
    ]
    shown = made.automation
    assert (shown.status, shown.live_run.handler, shown.live_run.trigger) == (
        pb.AUTOMATION_ACTIVE,
        "add",
        pb.TRIGGER_DEPLOY,
    )
    assert shown.live_run.phase == pb.PHASE_PREPARING
    handlers = {one.definition.name: one for one in shown.handlers}
    assert "5 minutes" in handlers["poll"].words
    assert "Europe/Berlin" in handlers["nightly"].words
    assert handlers["nightly"].definition.timing.cron == "30 2 * * *"
    assert handlers["add"].words == ""
    assert [(one.topic, one.consumer) for one in shown.backlog] == [("chat", "add"), ("mail", "add")]


async def test_what_breaks_a_rule_of_definitions_is_refused_by_handler_and_rule(
    service: Service,
) -> None:
    def kind(**given: Any) -> pb.HandlerDefinition:
        fields: dict[str, Any] = {"name": "x", "kind": pb.HANDLER_PRODUCER, "publishes": ["mail"], **given}
        return pb.HandlerDefinition(**fields)

    timing = ScheduleTiming(every_ms=1_000)
    for handlers, field, why in (
        ([], "definition.handlers", "no handler"),
        ([acts("x"), acts("x")], "definition.handlers", "are named 'x'"),
        ([kind(timing=timing, publishes=[])], "definition.handlers.publishes", "publishes to no topic"),
        ([acts("x", [])], "definition.handlers.subscribes", "subscribes to no topic"),
        ([kind()], "definition.handlers.timing", "has no schedule"),
        ([kind(timing=ScheduleTiming(cron="61 * * * *"))], "definition.handlers.timing.cron", "the schedule of"),
        ([kind(timing=ScheduleTiming(every_ms=10))], "definition.handlers.timing.every_ms", "one second"),
        ([kind(timing=timing, timezone="Mars/Olympus")], "definition.handlers.timezone", "Mars/Olympus"),
        ([kind(timing=timing, subscribes=["mail"])], "definition.handlers.subscribes", "only consumers do"),
        ([kind(timing=timing, mutates=True)], "definition.handlers.mutates", "only consumers do"),
        ([kind(timing=timing, name="x" * 128)], "definition.handlers.name", "128 bytes"),
    ):
        request = pb.DeployAutomationRequest(definition=defined(*handlers))
        said = await refusal(service.DeployAutomation(request))
        assert (said.field, why in said.message) == (field, True), said
    assert len((await service.ListAutomations(pb.ListAutomationsRequest())).automations) == 0


async def test_automations_are_listed_by_name_status_and_page(service: Service) -> None:
    for name in ("c", "a", "b"):
        await _deploy(service, acts(), name=name)
    await service.PauseAutomation(pb.PauseAutomationRequest(name="b"))
    page = await service.ListAutomations(pb.ListAutomationsRequest(page_size=2))
    assert [one.name for one in page.automations] == ["a", "b"]
    rest = await service.ListAutomations(pb.ListAutomationsRequest(page_size=2, page_token=page.next_page_token))
    assert [one.name for one in rest.automations] == ["c"]
    assert rest.next_page_token == ""
    paused = await service.ListAutomations(pb.ListAutomationsRequest(statuses=[pb.AUTOMATION_PAUSED]))
    assert [(one.name, one.HasField("paused_at")) for one in paused.automations] == [("b", True)]


async def test_pause_and_resume_change_nothing_when_repeated(service: Service) -> None:
    await _deploy(service, acts())
    first = (await service.PauseAutomation(pb.PauseAutomationRequest(name="inbox"))).automation
    again = (await service.PauseAutomation(pb.PauseAutomationRequest(name="inbox"))).automation
    assert first.paused_at == again.paused_at
    for _ in range(2):
        resumed = (await service.ResumeAutomation(pb.ResumeAutomationRequest(name="inbox"))).automation
        assert resumed.status == pb.AUTOMATION_ACTIVE


async def test_run_now_is_refused_while_a_run_is_active(service: Service) -> None:
    await _deploy(service, polls())
    said = await refusal(service.RunNow(pb.RunNowRequest(name="inbox")))
    assert said.code == ErrorDetail.PRECONDITION_FAILED


async def test_published_events_are_listed_with_their_payloads_and_in_pages(service: Service) -> None:
    await _deploy(service, acts(), acts("other"))
    events = [event(f"m{number}", value=number, input=MAIL) for number in range(5)]
    inputs = [pb.InputRegistration(key=MAIL, title="An e-mail")]
    made = await service.Publish(pb.PublishRequest(name="inbox", inputs=inputs, events=events))
    assert (made.created, made.updated) == (5, 0)
    again = await service.Publish(pb.PublishRequest(name="inbox", inputs=inputs, events=events))
    assert (again.created, again.updated) == (0, 5)
    seen, token = [], ""
    while True:
        page = await service.ListEvents(
            pb.ListEventsRequest(name="inbox", include_payloads=True, page_size=2, page_token=token)
        )
        seen += [(one.event_id, one.payload.data) for one in page.events]
        token = page.next_page_token
        if not token:
            break
    assert sorted(seen) == [(f"m{number}", str(number).encode()) for number in range(5)]
    assert len(seen) == 5
    found = await _get(service)
    assert [(one.consumer, one.pending) for one in found.backlog] == [("add", 5), ("other", 5)]
    assert found.pending == 10
    [shown] = (await service.ListInputs(pb.ListInputsRequest(name="inbox"))).inputs
    assert (shown.title, shown.status, shown.pending) == ("An e-mail", pb.INPUT_PENDING, 10)
    none = await service.ListInputs(pb.ListInputsRequest(name="inbox", statuses=[pb.INPUT_DONE]))
    assert list(none.inputs) == []


async def test_inputs_are_listed_newest_first_in_pages(service: Service) -> None:
    await _deploy(service, acts())
    keys = [pb.InputKey(source="gmail", type="email", id=f"k{number}") for number in range(5)]
    for key in keys:
        request = pb.PublishRequest(
            name="inbox", inputs=[pb.InputRegistration(key=key)], events=[event(key.id, input=key)]
        )
        await service.Publish(request)
    seen, token = [], ""
    while True:
        page = await service.ListInputs(pb.ListInputsRequest(name="inbox", page_size=2, page_token=token))
        seen += [one.key.id for one in page.inputs]
        token = page.next_page_token
        if not token:
            break
    assert seen == ["k4", "k3", "k2", "k1", "k0"]


async def test_a_page_with_payloads_ends_before_it_grows_too_large(service: Service) -> None:
    await _deploy(service, acts())
    for number in range(3):
        large = pb.EventPublication(topics=["mail"], event_id=f"m{number}", payload=data("x" * 2_000_000))
        await service.Publish(pb.PublishRequest(name="inbox", events=[large]))
    page = await service.ListEvents(pb.ListEventsRequest(name="inbox", include_payloads=True))
    assert [one.event_id for one in page.events] == ["m2"]
    assert page.next_page_token
    whole = await service.ListEvents(pb.ListEventsRequest(name="inbox"))
    assert len(whole.events) == 3


async def test_an_event_names_only_inputs_that_are_registered_along(service: Service) -> None:
    await _deploy(service, acts())
    said = await refusal(service.Publish(pb.PublishRequest(name="inbox", events=[event("m1", input=MAIL)])))
    assert said.field == "events.input"
    said = await refusal(service.Publish(pb.PublishRequest(name="inbox", events=[event("m1", "nowhere")])))
    assert said.field == "events.topics"


async def test_what_blocks_is_shown_with_the_mutation_and_resolved(service: Service, stage: Stage) -> None:
    await _deploy(service, acts())
    await service.Publish(pb.PublishRequest(name="inbox", events=[event("m1")]))
    held = await stage.claim()
    await stage.prepare(held, "m1", title="Add a row")
    mutation_id = await stage.mutate(held, "UNCLEAR", reconciler=False)
    found = await _get(service)
    assert (found.status, found.blocked.code) == (pb.AUTOMATION_BLOCKED, pb.BLOCKED_INDETERMINATE)
    assert (found.blocked.mutation.mutation_id, found.blocked.mutation.title) == (mutation_id, "Add a row")
    assert found.blocked.mutation.parameters.data == b'["reports"]'
    assert found.live_run.phase == pb.PHASE_MUTATING
    for asked in (
        service.RetryBlocked(pb.RetryBlockedRequest(name="inbox")),
        service.RunNow(pb.RunNowRequest(name="inbox")),
    ):
        said = await refusal(asked)
        assert (said.code, "say what became of it" in said.message) == (ErrorDetail.PRECONDITION_FAILED, True)
    request = pb.ResolveMutationRequest(
        name="inbox",
        mutation_id=mutation_id,
        resolution=pb.ResolveMutationRequest.RESOLUTION_HAPPENED,
        result=data(5),
        reason="I looked",
    )
    answered = await service.ResolveMutation(request)
    assert (answered.mutation.status, answered.mutation.result) == (pb.MUTATION_APPLIED, data(5))
    assert answered.automation.status == pb.AUTOMATION_ACTIVE
    assert await service.ResolveMutation(request) == answered


async def test_a_state_is_shown_when_it_is_asked_for(service: Service, stage: Stage) -> None:
    await _deploy(service, polls())
    await stage.commit(await stage.claim(), state={"cursor": 2})
    assert (await _get(service, state_of="poll")).handlers[0].state == data({"cursor": 2})
    assert not (await _get(service)).handlers[0].HasField("state")
    said = await refusal(service.GetAutomation(pb.GetAutomationRequest(name="inbox", state_of="pole")))
    assert (said.code, said.field, "'pole'" in said.message) == (ErrorDetail.NOT_FOUND, "state_of", True)


async def test_deployments_of_many_workers_at_once_are_one(service: Service) -> None:
    made = await asyncio.gather(*(_deploy(service, polls(), acts()) for _ in range(8)))
    assert sum(one.changed for one in made) == 1
