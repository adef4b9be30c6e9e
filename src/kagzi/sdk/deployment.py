"""Deployments: the automations of a worker, put in force by the server that welcomed it. Each stream begins with it, so
that a definition is in force whatever became of the last server; a server recognises a repetition, and that a later
worker has put another definition in its place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

import grpc

from kagzi.protocol.v1.automation_pb2 import AutomationDefinition, DeployAutomationRequest, DeployAutomationResponse
from kagzi.protocol.v1.automation_pb2_grpc import AutomationServiceStub
from kagzi.sdk import calls
from kagzi.sdk.errors import ServerError, Unavailable

log = logging.getLogger("kagzi.worker")

Metadata: TypeAlias = "tuple[tuple[str, str], ...]"

# One try; longer than a server waits for its database before it says that it cannot reach it.
_TRY_SECS = 20.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0


class Deployments:
    """The definitions that one worker brings. `deployment_id` is its own, made when it starts."""

    def __init__(self, namespace: str, definitions: Sequence[AutomationDefinition], deployment_id: str) -> None:
        self._requests = [
            DeployAutomationRequest(namespace=namespace, definition=definition, deployment_id=deployment_id)
            for definition in definitions
        ]
        self._told: set[str] = set()
        # A server has taken all of them once.
        self.in_force = False

    async def put_in_force(self, channel: grpc.aio.Channel, metadata: Metadata) -> None:
        """Deploys everything, trying on while the server cannot. Raises ServerError when it refuses one for good."""
        deploy = AutomationServiceStub(channel).DeployAutomation
        for request in self._requests:
            pause = _FIRST_PAUSE
            while (answer := await _try(deploy, request, metadata)) is None:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            self._tell(request.definition, answer)
        self.in_force = True

    def _tell(self, definition: AutomationDefinition, answer: DeployAutomationResponse) -> None:
        name = definition.name
        if answer.changed:
            log.info("automation %s: deployed %s", name, definition.definition_hash)
        for warning in answer.warnings:
            if f"{name}/{warning}" not in self._told:
                self._told.add(f"{name}/{warning}")
                log.warning("automation %s: %s", name, warning)
        if answer.superseded:
            log.warning("automation %s: a later worker has deployed another definition, which stays in force", name)


async def _try(deploy: Any, request: DeployAutomationRequest, metadata: Metadata) -> DeployAutomationResponse | None:
    """One try; None when it is a matter of time."""
    try:
        answer: DeployAutomationResponse = await deploy(request, timeout=_TRY_SECS, metadata=metadata)
    except grpc.RpcError as failed:
        error: ServerError = calls.error_from(failed)
        if not (isinstance(error, Unavailable) or error.code == "INTERNAL"):
            raise error from None
        log.debug("automation %s is not deployed yet: %s", request.definition.name, error)
        return None
    return answer
