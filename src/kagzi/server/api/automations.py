"""AutomationService: what people and workers do with automations. Each method checks its request, does one thing in one
transaction or one read, and answers; what it means for others is announced after the commit.
"""

from __future__ import annotations

from typing import Any

import grpc
import uuid_utils
from asyncpg.connection import Connection

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.server.announcer import Announcer
from kagzi.server.api import checks, definitions, phases
from kagzi.server.api.lineage import Lineage
from kagzi.server.api.workflows import DEFAULT_QUEUE
from kagzi.store import automations, controls, deployments, namespaces, publications
from kagzi.store.database import Database
from kagzi.store.errors import invalid
from kagzi.store.operation import Outcome

Context = grpc.aio.ServicerContext[Any, Any]

_EVENTS = 1_000


class Automations(Lineage):
    """Deploys, shows and changes automations."""

    def __init__(self, database: Database, announcer: Announcer, timezone: str) -> None:
        super().__init__(database, announcer)
        self._timezone = timezone

    async def DeployAutomation(
        self, request: pb.DeployAutomationRequest, context: Context
    ) -> pb.DeployAutomationResponse:
        namespace = checks.namespace(request.namespace)
        declared = definitions.definition(request.definition, self._timezone, DEFAULT_QUEUE)
        deployment_id = checks.uuid(request.deployment_id, "deployment_id", required=False) or str(uuid_utils.uuid7())

        async def deploy(connection: Connection, outcome: Outcome) -> pb.DeployAutomationResponse:
            made = await deployments.deploy(connection, namespace, declared, deployment_id, outcome)
            return pb.DeployAutomationResponse(
                automation=await self._shown(connection, namespace, declared.name),
                changed=made.changed,
                superseded=made.superseded,
                warnings=definitions.warnings(declared, request.definition.accepts),
            )

        return await self._transact(namespace, deploy)

    async def ListAutomations(self, request: pb.ListAutomationsRequest, context: Context) -> pb.ListAutomationsResponse:
        namespace = checks.namespace(request.namespace)
        scope = checks.scope(request, namespace)
        page = checks.page(request.page_size, request.page_token, scope)
        after = str(page.after[0]) if page.after else ""
        for status in request.statuses:
            checks.enum(status, pb.AutomationStatus, "statuses", required=True)
        statuses = [automations.STATUS_NAME[status] for status in request.statuses]
        count_to = self._count_to(request)

        async def read(connection: Connection) -> list[pb.Automation]:
            await namespaces.get(connection, namespace)
            return await automations.list_(
                connection,
                namespace,
                count=page.size + 1,
                after=after,
                statuses=statuses or None,
                count_to=count_to,
            )

        found = await self._database.read(read)
        shown = found[: page.size]
        token = checks.page_token(scope, (shown[-1].name,)) if len(found) > page.size else ""
        return pb.ListAutomationsResponse(automations=shown, next_page_token=token)

    async def GetAutomation(self, request: pb.GetAutomationRequest, context: Context) -> pb.GetAutomationResponse:
        namespace, name = self._named(request)
        state_of = checks.name(request.state_of, "state_of", default="")
        count_to = self._count_to(request)
        found = await self._database.read(lambda c: self._shown(c, namespace, name, state_of, count_to))
        return pb.GetAutomationResponse(automation=found)

    async def RunNow(self, request: pb.RunNowRequest, context: Context) -> pb.RunNowResponse:
        namespace, name = self._named(request)
        request_id = checks.uuid(request.request_id, "request_id", required=False) or str(uuid_utils.uuid7())

        async def run_now(connection: Connection, outcome: Outcome) -> pb.RunNowResponse:
            queued = await controls.run_now(connection, namespace, name, request_id, outcome)
            return pb.RunNowResponse(automation=await self._shown(connection, namespace, name), producers=queued)

        return await self._transact(namespace, run_now)

    async def PauseAutomation(self, request: pb.PauseAutomationRequest, context: Context) -> pb.PauseAutomationResponse:
        namespace, name = self._named(request)

        async def pause(connection: Connection, _: Outcome) -> pb.PauseAutomationResponse:
            await controls.pause(connection, namespace, name)
            return pb.PauseAutomationResponse(automation=await self._shown(connection, namespace, name))

        return await self._transact(namespace, pause)

    async def ResumeAutomation(
        self, request: pb.ResumeAutomationRequest, context: Context
    ) -> pb.ResumeAutomationResponse:
        namespace, name = self._named(request)

        async def resume(connection: Connection, outcome: Outcome) -> pb.ResumeAutomationResponse:
            await controls.resume(connection, namespace, name, outcome)
            return pb.ResumeAutomationResponse(automation=await self._shown(connection, namespace, name))

        return await self._transact(namespace, resume)

    async def RetryBlocked(self, request: pb.RetryBlockedRequest, context: Context) -> pb.RetryBlockedResponse:
        namespace, name = self._named(request)
        run_id = checks.uuid(request.run_id, "run_id", required=False) or None

        async def retry(connection: Connection, outcome: Outcome) -> pb.RetryBlockedResponse:
            unblocked = await controls.retry_blocked(connection, namespace, name, run_id, outcome)
            return pb.RetryBlockedResponse(
                automation=await self._shown(connection, namespace, name), unblocked=unblocked
            )

        return await self._transact(namespace, retry)

    async def Publish(self, request: pb.PublishRequest, context: Context) -> pb.PublishResponse:
        namespace, request.name = self._named(request)
        if not request.events:
            raise invalid("events", "events is empty: there is nothing to publish")
        phases.registrations(request.inputs, "inputs", _EVENTS)
        phases.publications(request.events, "events", _EVENTS)
        named = {publications.input_id(registration.key) for registration in request.inputs}
        for event in request.events:
            if event.HasField("input") and publications.input_id(event.input) not in named:
                message = f"event {event.event_id!r} names an input that is not among `inputs`: register it along"
                raise invalid("events.input", message, event.event_id)
        made = await self._transact(namespace, lambda c, outcome: controls.publish(c, namespace, request, outcome))
        return pb.PublishResponse(
            created=made.counts.created, updated=made.counts.updated, status=automations.STATUS[made.status]
        )
