"""Operations of workers, checked: what a stream's frames and the unary calls have in common. A check that fails refuses
its operation alone, before it reaches the batcher.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import uuid_utils

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.automation_pb2 import HandlerFault
from kagzi.protocol.v1.common_pb2 import (
    SIGNAL,
    SLEEP,
    STEP_ABANDONED,
    STEP_FAILED,
    STEP_INTERRUPTED,
    STEP_UNKNOWN,
    ErrorDetail,
    StepKind,
)
from kagzi.server.api import checks, phases
from kagzi.server.api.workflows import start_operation
from kagzi.store.errors import Refused, invalid
from kagzi.store.operation import GIVING_AWAY, HANDLING, Kind, Operation

_LAST_MICROSECOND = 7_258_118_400_000_000
_STATES = 2**31 - 1
_UNCLEAR = 2**15 - 1
_A_DAY_US = 86_400_000_000
# Ids of run, claim and attempt as they are written almost always, one after another.
_USUAL_IDS = re.compile(r"(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}){3}")
_STEP_KINDS = frozenset(number for number in StepKind.values() if number)
_WARNING = 2_000

_KINDS: dict[str, Kind] = {
    "step_started": Kind.START_STEP,
    "step_completed": Kind.COMPLETE_STEP,
    "step_failed": Kind.FAIL_STEP,
    "wait": Kind.WAIT,
    "suspend": Kind.SUSPEND,
    "set_state": Kind.SET_STATE,
    "start_child": Kind.START_CHILD,
    "complete": Kind.COMPLETE,
    "fail": Kind.FAIL,
    "continue_as_new": Kind.CONTINUE_AS_NEW,
    "release": Kind.RELEASE,
    "warn": Kind.WARN,
    **phases.KINDS,
}


def of_frame(namespace: str, message: pb.Operation) -> Operation:
    """The operation in a stream's frame; what follows it in its run falls with it."""
    name = message.WhichOneof("body")
    kind = _KINDS.get(name or "")
    if kind is None or name is None:
        raise Refused(
            ErrorDetail(code=ErrorDetail.UNIMPLEMENTED, message=f"this server does not know the operation {name!r}")
        )
    run_id, token, body = message.run_id, message.claim_token, getattr(message, name)
    if kind is Kind.COMPLETE_STEP and _is_usual(run_id, token, body):
        return Operation(kind, namespace, run_id, body, token=token, chained=True)
    operation = of_worker(namespace, kind, run_id, token, body, field=name, place="")
    # A worker waits for the answer to each end of a phase, and says with Fail what was refused.
    operation.chained = kind not in HANDLING
    return operation


def refused_in_frame(namespace: str, message: pb.Operation, detail: ErrorDetail) -> Operation:
    """An operation that failed its checks. It takes its place in the order of its run, and what follows falls."""
    return Operation(
        Kind.WAIT,
        namespace,
        message.run_id.lower(),
        message,
        token=message.claim_token.lower(),
        chained=_KINDS.get(message.WhichOneof("body") or "") not in HANDLING,
        answer=detail,
    )


def of_worker(
    namespace: str,
    kind: Kind,
    run_id: str,
    claim_token: str,
    body: Any,
    *,
    field: str,
    operation_id: str | None = None,
    place: str = "run.",
) -> Operation:
    """A worker's operation with its body checked. `field` is where the body stands in the request, `place` where the
    run does.
    """
    run_id = checks.uuid(run_id, f"{place}run_id")
    token = checks.uuid(claim_token, f"{place}claim_token")
    check = _CHECKS.get(kind)
    if check is not None:
        check(namespace, body, field)
    given = operation_id if operation_id is not None else getattr(body, "operation_id", "")
    if kind is Kind.COMMIT_HANDLER:
        given = body.step.attempt_id
    where = "operation_id" if operation_id is not None else f"{field}.operation_id"
    return Operation(
        kind,
        namespace,
        run_id,
        body,
        token=token,
        operation_id=checks.uuid(given, where, required=False) or _own_id(kind),
    )


def _own_id(kind: Kind) -> str | None:
    """The store repeats what it committed without being told, and has to know it again where the sender named no id."""
    return str(uuid_utils.uuid4()) if kind in GIVING_AWAY else None


def _step(_: str, body: Any, field: str) -> None:
    checks.name(body.step_id, f"{field}.step_id")
    body.attempt_id = checks.uuid(body.attempt_id, f"{field}.attempt_id")
    checks.enum(body.kind, StepKind, f"{field}.kind", required=True)
    phases.order(body, field)
    for name in ("signal_id", "child_run_id"):
        if getattr(body, name, ""):
            setattr(body, name, checks.uuid(getattr(body, name), f"{field}.{name}"))


def _step_started(namespace: str, body: pb.StepStarted, field: str) -> None:
    _step(namespace, body, field)
    if body.HasField("duration_ms"):
        checks.duration_ms(body.duration_ms, f"{field}.duration_ms")
    wake_at(body, f"{field}.wake_at_us")
    if body.kind == SLEEP and not (body.HasField("duration_ms") or body.HasField("wake_at_us")):
        raise invalid(f"{field}.duration_ms", "a timer needs duration_ms or wake_at_us")
    if body.kind == SIGNAL or body.target:
        checks.name(body.target, f"{field}.target")


def wake_at(body: Any, field: str) -> None:
    """A time to wake at must be one that can be stored."""
    if body.HasField("wake_at_us") and not 0 <= body.wake_at_us < _LAST_MICROSECOND:
        raise invalid(field, f"{field} is not between the years 1970 and 2199")


def _is_usual(run_id: str, token: str, body: pb.StepCompleted) -> bool:
    """Whether there is plainly nothing wrong with a result, as with almost every one."""
    step_id, output = body.step_id, body.output
    return bool(
        0 < len(step_id) <= checks.NAME_BYTES
        and step_id.isascii()
        and step_id.isprintable()
        and len(run_id) == len(token) == 36
        and _USUAL_IDS.fullmatch(run_id + token + body.attempt_id)
        and body.kind in _STEP_KINDS
        and 0 <= body.attempt_number <= phases.ATTEMPTS
        and 0 <= body.position <= phases.POSITIONS
        and 0 <= body.completed_seq <= phases.SEQUENCE
        and 0 <= body.elapsed_us <= _A_DAY_US
        and not body.signal_id
        and not body.child_run_id
        and not output.encoding
        and len(output.data) <= checks.PAYLOAD_BYTES
    )


def _step_completed(namespace: str, body: pb.StepCompleted, field: str) -> None:
    _step(namespace, body, field)
    if body.HasField("output"):
        checks.payload(body.output, f"{field}.output")


def _step_failed(namespace: str, body: pb.StepFailed, field: str) -> None:
    _step(namespace, body, field)
    if body.outcome not in (0, STEP_FAILED, STEP_UNKNOWN, STEP_ABANDONED, STEP_INTERRUPTED):
        raise invalid(f"{field}.outcome", f"{field}.outcome cannot be {body.outcome}")
    if body.HasField("failure"):
        checks.failure(body.failure, f"{field}.failure")
    if body.HasField("retry"):
        checks.retry(body.retry, f"{field}.retry")
    if not 0 <= body.unclear <= _UNCLEAR:
        raise invalid(f"{field}.unclear", f"{field}.unclear is {body.unclear}, and must be 0 to {_UNCLEAR}")
    if body.HasField("ask_again_ms"):
        checks.duration_ms(body.ask_again_ms, f"{field}.ask_again_ms")


def _start_child(namespace: str, body: pb.StartChild, field: str) -> None:
    checks.name(body.step_id, f"{field}.step_id")
    body.attempt_id = checks.uuid(body.attempt_id, f"{field}.attempt_id")
    if not 0 <= body.position <= phases.POSITIONS:
        raise invalid(f"{field}.position", f"{field}.position is {body.position}, and must be 0 to {phases.POSITIONS}")
    if not 0 <= body.completed_seq <= phases.SEQUENCE:
        raise invalid(f"{field}.completed_seq", f"{field}.completed_seq must be 0 to {phases.SEQUENCE}")
    if body.child.namespace not in ("", namespace):
        raise invalid(f"{field}.child.namespace", "a child lives in the namespace of its parent", body.child.namespace)
    checks.uuid(body.child.run_id, f"{field}.child.run_id")
    try:
        start_operation(namespace, body.child)
    except Refused as refused:
        refused.detail.field = f"{field}.child.{refused.detail.field}"
        raise


def _suspend(namespace: str, body: pb.Suspend, field: str) -> None:
    _wait(namespace, body, field)
    if body.parked_json:
        checks.json_document(body.parked_json, f"{field}.parked_json", checks.STATE_BYTES)
    elif not body.step_ids:
        raise invalid(f"{field}.step_ids", "a run is suspended over at least one step, or parked")
    if body.parked_hash:
        checks.name(body.parked_hash, f"{field}.parked_hash")


def _wait(_: str, body: pb.Wait | pb.Suspend, field: str) -> None:
    for step_id in body.step_ids:
        checks.name(step_id, f"{field}.step_ids")


def _set_state(_: str, body: pb.SetState, field: str) -> None:
    checks.json_document(body.state_json, f"{field}.state_json", checks.STATE_BYTES)
    if not 1 <= body.number <= _STATES:
        raise invalid(f"{field}.number", f"{field}.number is {body.number}, and must be 1 to {_STATES}")


def _warn(_: str, body: pb.Warn, field: str) -> None:
    checks.name(body.step_id, f"{field}.step_id")
    body.message = checks.text(body.message, f"{field}.message", _WARNING)


def _complete(_: str, body: pb.Complete, field: str) -> None:
    if body.HasField("output"):
        checks.payload(body.output, f"{field}.output")


def _fail(_: str, body: pb.Fail, field: str) -> None:
    checks.failure(body.failure, f"{field}.failure")
    checks.name(body.failed_step_id, f"{field}.failed_step_id", default="")
    checks.enum(body.fault, HandlerFault, f"{field}.fault")


def _continue_as_new(_: str, body: pb.ContinueAsNew, field: str) -> None:
    body.new_run_id = checks.uuid(body.new_run_id, f"{field}.new_run_id")
    if body.HasField("input"):
        checks.payload(body.input, f"{field}.input")


_CHECKS: dict[Kind, Callable[[str, Any, str], None]] = {
    Kind.START_STEP: _step_started,
    Kind.BEGIN_STEP: _step_started,
    Kind.COMPLETE_STEP: _step_completed,
    Kind.FAIL_STEP: _step_failed,
    Kind.FAIL_STEP_AND_GIVE_BACK: _step_failed,
    Kind.START_CHILD: _start_child,
    Kind.AWAIT_CHILD: _start_child,
    Kind.SET_STATE: _set_state,
    Kind.WARN: _warn,
    Kind.WAIT: _wait,
    Kind.SUSPEND: _suspend,
    Kind.COMPLETE: _complete,
    Kind.FAIL: _fail,
    Kind.CONTINUE_AS_NEW: _continue_as_new,
    **phases.CHECKS,
}
