"""Values of one run on their way between code and wire: by annotation to bytes, through the codecs, and back; errors to
text, and back to what the code catches. Live and replayed code get the same, because both get it from here.
"""

from __future__ import annotations

import hashlib
from typing import Any

from kagzi.protocol.v1.common_pb2 import CHILD_WORKFLOW, Failure
from kagzi.protocol.v1.common_pb2 import Payload as WirePayload
from kagzi.sdk import payload
from kagzi.sdk.codec import Binding, Chain, Role
from kagzi.sdk.errors import NonRetryable, PayloadError, RetryAfter, RunCancelled, RunFailed, StepFailed
from kagzi.sdk.failure import ErrorInfo
from kagzi.sdk.pending import Pending
from kagzi.sdk.waits import CHILD_CANCELLED


class Values:
    """Encodes and decodes for one workflow type of one namespace."""

    __slots__ = ("_bindings", "_codecs", "_namespace", "_type")

    def __init__(self, codecs: Chain, namespace: str, workflow_type: str) -> None:
        self._codecs = codecs
        self._namespace = namespace
        self._type = workflow_type
        self._bindings: dict[str, Binding] = {}

    def encode(self, value: Any, annotation: Any, role: Role, workflow_type: str = "") -> WirePayload:
        """A value as it is stored. PayloadError when it has no encoded form."""
        made = self._codecs.encode(payload.encode(value, annotation), self._binding(role, workflow_type))
        return WirePayload(data=made.data, encoding="" if made.encoding == payload.JSON else made.encoding)

    def decode(self, stored: WirePayload | None, annotation: Any, role: Role, workflow_type: str = "") -> Any:
        """A stored value; None when nothing was stored. PayloadError when it is no such value."""
        if stored is None:
            return None
        given = payload.Payload(stored.data, stored.encoding or payload.JSON)
        return payload.decode(self._codecs.decode(given, self._binding(role, workflow_type)), annotation)

    def _binding(self, role: Role, workflow_type: str) -> Binding:
        key = f"{role}/{workflow_type}"
        found = self._bindings.get(key)
        if found is None:
            found = self._bindings[key] = Binding(self._namespace, workflow_type or self._type, role)
        return found


def input_hash(seed: int, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> int:
    """A keyed hash of what a step was called with, to notice that it changed; 0 when it has no encoded form."""
    if not arguments and not keywords:
        return 0
    try:
        data = payload.encode([*arguments, keywords] if keywords else list(arguments)).data
    except PayloadError:
        return 0
    digest = hashlib.blake2b(data, digest_size=8, key=seed.to_bytes(8, "big", signed=True)).digest()
    return int.from_bytes(digest, "big", signed=True)


def failure_of(error: BaseException) -> Failure:
    """An error as it travels: text, whether trying again is pointless, and the delay it asks for."""
    info = ErrorInfo.from_exception(error)
    failure = Failure(type=info.type, message=info.message, traceback=info.traceback)
    failure.non_retryable = isinstance(error, NonRetryable | PayloadError)
    if isinstance(error, RetryAfter):
        failure.retry_after_ms = int(error.delay.total_seconds() * 1_000)
    return failure


def error_of(pending: Pending, failure: Failure, attempts: int) -> Exception:
    """What the code catches for a recorded failure; never the original object."""
    info = ErrorInfo(failure.type, failure.message, failure.traceback)
    if pending.request.kind != CHILD_WORKFLOW:
        return StepFailed(pending.step_id, info, attempts)
    if failure.type == CHILD_CANCELLED:
        return RunCancelled(pending.child_run_id, failure.message)
    return RunFailed(pending.child_run_id, info)
