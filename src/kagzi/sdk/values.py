"""Values of one run on their way between code and wire: by annotation to bytes, through the codecs, and back; errors to
text, and back to what the code catches. Live and replayed code get the same, because both get it from here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from typing import Any

import msgspec

from kagzi.protocol.v1.common_pb2 import CHILD_WORKFLOW, SIGNAL, Failure, Step
from kagzi.protocol.v1.common_pb2 import Payload as WirePayload
from kagzi.sdk import duration, payload
from kagzi.sdk.codec import Binding, Chain, Role
from kagzi.sdk.errors import PayloadError, RetryAfter, RunCancelled, RunFailed, StepFailed, retryable
from kagzi.sdk.failure import ErrorInfo
from kagzi.sdk.pending import Pending
from kagzi.sdk.waits import CHILD_CANCELLED, LONGEST_MS

# What the server stores of one value.
MOST_BYTES = 2 * 1024 * 1024
_STATE_BYTES = 64 * 1024
# The escape of NUL, and not a backslash in the text before these letters.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class Values:
    """Encodes and decodes for one workflow type of one namespace."""

    __slots__ = ("_bindings", "_codecs", "_namespace", "_type")

    def __init__(self, codecs: Chain, namespace: str, workflow_type: str) -> None:
        self._codecs = codecs
        self._namespace = namespace
        self._type = workflow_type
        self._bindings: dict[str, Binding] = {}

    def encode(self, value: Any, annotation: Any, role: Role, workflow_type: str = "") -> WirePayload:
        """A value as it is stored. PayloadError when it has no encoded form, or is too large."""
        return self.pack(payload.encode(value, annotation), role, workflow_type)

    def pack(self, written: payload.Payload, role: Role, workflow_type: str = "") -> WirePayload:
        """What is written already, as it is stored. PayloadError when it is too large."""
        made = self._codecs.encode(written, self._binding(role, workflow_type))
        if len(made.data) > MOST_BYTES:
            raise PayloadError(
                f"A value of {len(made.data)} bytes is too large for its {role}: at most {MOST_BYTES} are stored. Put "
                "it elsewhere and pass where it is."
            )
        return WirePayload(data=made.data, encoding="" if made.encoding == payload.JSON else made.encoding)

    def decode(self, stored: WirePayload | None, annotation: Any, role: Role, workflow_type: str = "") -> Any:
        """A stored value; None when nothing was stored. PayloadError when it is no such value."""
        if stored is None:
            return None
        return payload.decode(self.unpack(stored, role, workflow_type), annotation)

    def unpack(self, stored: WirePayload, role: Role, workflow_type: str = "") -> payload.Payload:
        """What is stored, as it was written."""
        given = payload.Payload(stored.data, stored.encoding or payload.JSON)
        return self._codecs.decode(given, self._binding(role, workflow_type))

    def _binding(self, role: Role, workflow_type: str) -> Binding:
        key = f"{role}/{workflow_type}" if workflow_type else role
        found = self._bindings.get(key)
        if found is None:
            found = self._bindings[key] = Binding(self._namespace, workflow_type or self._type, role)
        return found


def binding_of(step: Step, workflow_type: str) -> tuple[Role, str]:
    """As what, and for which workflow, the output of a step was encoded: a signal's by its sender, a child's by the
    child, the rest by the run itself.
    """
    if step.kind == SIGNAL:
        return "signal", workflow_type
    if step.kind == CHILD_WORKFLOW and step.target:
        return "output", step.target
    return "step", workflow_type


_PLAIN = frozenset({int, str, bool, type(None)})
_PLAIN_ENCODER = msgspec.json.Encoder()


def state_text(document: Any) -> str:
    """A small JSON document as text. PayloadError when it is none, or could not be stored."""
    try:
        text = json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"The state of a run is a JSON document: {error}.") from error
    if size > _STATE_BYTES:
        raise PayloadError(f"The state of a run is a JSON document of at most {_STATE_BYTES} bytes; this has {size}.")
    if _NUL.search(text):
        raise PayloadError("The state of a run holds a text with NUL, which cannot be stored.")
    return text


def input_hash(seed: int, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> int:
    """A keyed hash of what a step was called with, to notice that it changed; 0 when it has no encoded form."""
    if not arguments and not keywords:
        return 0
    given = [*arguments, keywords] if keywords else list(arguments)
    try:
        data = _written(given)
    except PayloadError:
        return 0
    digest = hashlib.blake2b(data, digest_size=8, key=seed.to_bytes(8, "big", signed=True)).digest()
    return int.from_bytes(digest, "big", signed=True)


def _written(given: list[Any]) -> bytes:
    """What the payload of these values holds, without the care that plain ones do not need."""
    if _PLAIN.issuperset(map(type, given)):
        # An integer beyond all bounds, or half a character: the careful way says what it thinks of it.
        with contextlib.suppress(OverflowError, UnicodeEncodeError):
            return _PLAIN_ENCODER.encode(given)
    return payload.encode(given).data


def failure_of(error: BaseException) -> Failure:
    """An error as it travels: text, whether trying again is pointless, and the delay it asks for."""
    info = ErrorInfo.from_exception(error)
    failure = Failure(type=info.type, message=info.message, traceback=info.traceback)
    failure.non_retryable = not retryable(error)
    if isinstance(error, RetryAfter):
        failure.retry_after_ms = min(duration.milliseconds(error.delay), LONGEST_MS)
    return failure


def error_of(pending: Pending, failure: Failure, attempts: int) -> Exception:
    """What the code catches for a recorded failure; never the original object."""
    info = ErrorInfo(failure.type, failure.message, failure.traceback)
    if pending.request.kind != CHILD_WORKFLOW:
        return StepFailed(pending.step_id, info, attempts)
    error: RunFailed | RunCancelled
    if failure.type == CHILD_CANCELLED:
        error = RunCancelled(pending.child_run_id, failure.message)
    else:
        error = RunFailed(pending.child_run_id, info)
    # As StepFailed has it: which step to try again when this error leaves the workflow.
    vars(error)["step"] = pending.step_id
    return error
