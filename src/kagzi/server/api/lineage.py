"""The part of AutomationService that tells what became of what: events, inputs and all they caused, and the answers of
people where nobody else can tell.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeVar

import grpc
from asyncpg.connection import Connection

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1.automation_pb2_grpc import AutomationServiceServicer
from kagzi.server.announcer import Announcer
from kagzi.server.api import checks, definitions, phases
from kagzi.store import answers, automations, events, inputs, ledger, rows
from kagzi.store.database import Database
from kagzi.store.errors import invalid
from kagzi.store.operation import Outcome

Context = grpc.aio.ServicerContext[Any, Any]
T = TypeVar("T")

_REASON_BYTES = 2_000


class Lineage(AutomationServiceServicer):
    """Shows what was published and what became of it."""

    def __init__(self, database: Database, announcer: Announcer) -> None:
        self._database = database
        self._announcer = announcer

    async def ResolveMutation(self, request: pb.ResolveMutationRequest, context: Context) -> pb.ResolveMutationResponse:
        namespace, name = self._named(request)
        request.mutation_id = checks.uuid(request.mutation_id, "mutation_id")
        checks.enum(request.resolution, pb.ResolveMutationRequest.Resolution, "resolution", required=True)
        request.reason = checks.text(request.reason, "reason", _REASON_BYTES)
        if request.HasField("result"):
            checks.payload(request.result, "result")
            if request.resolution != pb.ResolveMutationRequest.RESOLUTION_HAPPENED:
                raise invalid("result", "only a mutation that HAPPENED has a result")

        async def resolve(connection: Connection, outcome: Outcome) -> pb.ResolveMutationResponse:
            await answers.resolve(connection, namespace, request, outcome)
            found = await ledger.by_id(connection, namespace, [request.mutation_id], whole=True)
            return pb.ResolveMutationResponse(
                mutation=ledger.message_of(found[request.mutation_id]),
                automation=await self._shown(connection, namespace, name),
            )

        return await self._transact(namespace, resolve)

    async def ListEvents(self, request: pb.ListEventsRequest, context: Context) -> pb.ListEventsResponse:
        namespace, name = self._named(request)
        scope = checks.scope(request, namespace)
        page = checks.page(request.page_size, request.page_token, scope)
        after_at, after_topic, after_id = (_moment(page.after[0]), *page.after[1:]) if page.after else (None, "", "")
        filters: dict[str, Any] = {
            "topic": _given(request.topic, "topic"),
            "event_id": _given(request.event_id, "event_id"),
            "consumer": _given(request.consumer, "consumer"),
            "statuses": _names(request.statuses, pb.DeliveryStatus, "DELIVERY_"),
            "run_id": checks.uuid(request.run_id, "run_id", required=False) or None,
            "after_at": after_at,
            "after_topic": after_topic,
            "after_id": after_id,
            "count": page.size,
        }
        look_at = checks.look_at(request.look_at)
        if look_at and request.include_payloads:
            raise invalid("look_at", "look_at goes without include_payloads")

        async def read(connection: Connection) -> tuple[list[pb.Event], events.Place | None]:
            await automations.require(connection, namespace, name)
            if look_at:
                return await events.look(connection, namespace, name, look_at=look_at, **filters)
            payloads = request.include_payloads
            return await events.list_(connection, namespace, name, payloads=payloads, **filters)

        found, last = await self._database.read(read)
        token = checks.page_token(scope, (rows.microseconds(last[0]), *last[1:])) if last else ""
        return pb.ListEventsResponse(events=found, next_page_token=token)

    async def ListInputs(self, request: pb.ListInputsRequest, context: Context) -> pb.ListInputsResponse:
        namespace, name = self._named(request)
        scope = checks.scope(request, namespace)
        page = checks.page(request.page_size, request.page_token, scope)
        after = (_moment(page.after[0]), *page.after[1:]) if page.after else (None, "", "", "")
        filters = {
            "source": _given(request.source, "source"),
            "type": _given(request.type, "type"),
            "statuses": _names(request.statuses, pb.InputStatus, "INPUT_"),
            "after_at": after[0],
            "after_source": after[1],
            "after_type": after[2],
            "after_key": after[3],
            "count": page.size + 1,
        }
        look_at = checks.look_at(request.look_at)
        if look_at and request.statuses:
            raise invalid("look_at", "look_at goes without statuses: what was not looked at cannot be told apart")

        async def read(connection: Connection) -> list[pb.Input]:
            await automations.require(connection, namespace, name)
            return await inputs.list_(connection, namespace, name, look_at=look_at, **filters)

        found = await self._database.read(read)
        token = ""
        if len(found) > page.size:
            found = found[: page.size]
            last = found[-1]
            key = (last.created_at.ToMicroseconds(), last.key.source, last.key.type, last.key.id)
            token = checks.page_token(scope, key)
        return pb.ListInputsResponse(inputs=found, next_page_token=token)

    async def GetInput(self, request: pb.GetInputRequest, context: Context) -> pb.GetInputResponse:
        namespace, name = self._named(request)
        phases.input_key(request.key, "key")
        look_at = checks.look_at(request.look_at)
        return await self._database.read(lambda c: inputs.get(c, namespace, name, request.key, look_at=look_at))

    async def SkipInput(self, request: pb.SkipInputRequest, context: Context) -> pb.SkipInputResponse:
        namespace, name = self._named(request)
        phases.input_key(request.key, "key")
        return await self._transact(namespace, lambda c, _: inputs.skip(c, namespace, name, request.key))

    @staticmethod
    def _named(request: Any) -> tuple[str, str]:
        return checks.namespace(request.namespace), checks.name(request.name, "name")

    @staticmethod
    def _count_to(request: Any) -> int:
        if not 0 <= request.count_to <= automations.COUNT_TO:
            raise invalid("count_to", f"count_to is {request.count_to}, and must be from 0 to {automations.COUNT_TO}")
        return request.count_to or automations.COUNT_TO

    @staticmethod
    async def _shown(
        connection: Connection, namespace: str, name: str, state_of: str = "", count_to: int = automations.COUNT_TO
    ) -> pb.Automation:
        """The automation as it is now, its schedules in words."""
        found = await automations.get(connection, namespace, name, state_of, count_to)
        for handler in found.handlers:
            handler.words = definitions.words(handler.definition)
        return found

    async def _transact(self, namespace: str, work: Callable[[Connection, Outcome], Awaitable[T]]) -> T:
        """Runs `work` in one transaction and tells of its outcome once that is committed."""

        async def transaction(connection: Connection) -> tuple[T, Outcome]:
            outcome = Outcome()
            return await work(connection, outcome), outcome

        answer, outcome = await self._database.transact(transaction)
        self._announcer.announce(namespace, outcome)
        return answer


def _given(value: str, field: str) -> str | None:
    """A filter; None when it is left out."""
    return checks.name(value, field) if value else None


def _names(values: Any, kind: Any, prefix: str) -> list[str] | None:
    """Statuses as they are stored; None for any."""
    found = [kind.Name(checks.enum(value, kind, "statuses", required=True)).removeprefix(prefix) for value in values]
    return found or None


def _moment(microseconds: str | int) -> datetime:
    return rows.moment(int(microseconds))
