"""Stored histories: what a run was given and what is on record of its steps, as a JSON document that `replay` takes.
The document is what a worker would be delivered, written as protobuf writes JSON. Payloads stay as they are stored:
what is encrypted stays encrypted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from kagzi.protocol.v1 import common_pb2
from kagzi.protocol.v1.admin_pb2 import ListStepsRequest
from kagzi.protocol.v1.common_pb2 import Failure, Step
from kagzi.protocol.v1.worker_pb2 import Delivery
from kagzi.protocol.v1.workflow_pb2 import GetWorkflowRequest
from kagzi.sdk.calls import resolve_namespace
from kagzi.sdk.descriptions import StepInfo
from kagzi.sdk.errors import ConfigError
from kagzi.sdk.handle import Handle

# What `replay` reads: a document of `history`, the path of a file with one, or the steps alone.
History = Mapping[str, Any] | str | Path | Sequence[StepInfo | Step]

_VERSION = 1
_PAGE = 100


async def history(handle: Handle[Any]) -> dict[str, Any]:
    """A run's history, to be kept with `json.dump` and replayed with `replay`."""
    reach = handle._reach  # noqa: SLF001 - users need steps as values; only a replay needs them as they are stored
    asked = GetWorkflowRequest(namespace=reach.namespace, run_id=handle.run_id)
    run = (await reach.look(lambda server: server.workflows.GetWorkflow, asked)).run
    delivery = Delivery(
        run_id=run.run_id,
        workflow_type=run.workflow_type,
        version=run.version,
        task_queue=run.task_queue,
        input=run.input if run.HasField("input") else None,
        attempts=run.attempts,
        labels=run.labels,
        external_id=run.external_id,
        created_at=run.created_at,
        scheduled_for=run.scheduled_for if run.HasField("scheduled_for") else None,
        parent_run_id=run.parent_run_id,
        root_run_id=run.root_run_id,
        seed=run.seed,
    )
    request = ListStepsRequest(namespace=reach.namespace, run_id=handle.run_id, include_outputs=True, page_size=_PAGE)
    while True:
        page = await reach.look(lambda server: server.admin.ListSteps, request)
        delivery.history.extend(page.steps)
        request.page_token = page.next_page_token
        if not request.page_token:
            break
    document = MessageToDict(delivery, preserving_proto_field_name=True)
    return {"kagzi_history": _VERSION, "namespace": reach.namespace, "run": document}


def read(given: History) -> tuple[str, Delivery]:
    """The namespace, and what a worker would have been delivered. ConfigError when it is no history."""
    if isinstance(given, str | Path):
        path = Path(given)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{path} holds no history: {error}. Write one with json.dump(await history(handle), …)."
            ) from error
        return _document(document)
    if isinstance(given, Mapping):
        return _document(given)
    return resolve_namespace(), Delivery(history=[_step(step) for step in given])


def _document(given: Any) -> tuple[str, Delivery]:
    if not isinstance(given, Mapping) or given.get("kagzi_history") != _VERSION:
        raise ConfigError(
            f"This is no history of version {_VERSION}: make one with `await kagzi.testing.history(handle)`."
        )
    try:
        return str(given["namespace"]), ParseDict(given["run"], Delivery())
    except (KeyError, ParseError) as error:
        raise ConfigError(f"The history cannot be read: {error}.") from error


def _step(given: StepInfo | Step) -> Step:
    """A step as it is stored; of what `handle.steps()` tells, without the hash of its input."""
    if isinstance(given, Step):
        return given
    if not isinstance(given, StepInfo):
        raise ConfigError(
            f"A history is a list of steps, as `await handle.steps()` gives them, and not of {given!r:.80}."
        )
    step = Step(
        step_id=given.step_id,
        attempt_id=given.attempt_id,
        attempt_number=given.attempt,
        is_latest=True,
        kind=common_pb2.StepKind.Value(given.kind.value),
        status=common_pb2.StepStatus.Value(f"STEP_{given.status.value}"),
        position=given.position,
        completed_seq=given.completed_seq or 0,
        output=given._output,  # noqa: SLF001 - the bytes, which its users never need
        target=given.target or "",
        child_run_id=given.child_run_id or "",
        effect=given.effect,
    )
    if given.error is not None:
        error = given.error
        step.failure.CopyFrom(Failure(type=error.type, message=error.message, traceback=error.traceback))
    if given.retry_at is not None:
        step.retry_at.FromDatetime(given.retry_at)
    if given.wake_at is not None:
        step.wake_at.FromDatetime(given.wake_at)
    return step
