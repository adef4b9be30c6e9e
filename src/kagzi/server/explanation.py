"""Why a run is where it is, in words: from the facts of the store to reasons, the most important first, each with what
to do if that is not wanted. Pure: it reads no database and knows no clock but the one in the facts.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from kagzi.protocol.v1 import admin_pb2 as pb
from kagzi.protocol.v1.common_pb2 import RunStatus
from kagzi.store import rows
from kagzi.store.explanations import ASKED, SEEN, Facts, Fleet, Wait

Reason = pb.ExplainRunResponse.Reason

_POISONED = "Poisoned"
# A worker is to be heard of several times within a lease; after this many of its intervals it is called silent.
_MISSED = 2.5


def explain(facts: Facts, heartbeat: timedelta) -> pb.ExplainRunResponse:
    """The answer; `heartbeat` is how often a worker is to be heard of."""
    reasons = list(_reasons(facts, heartbeat))
    summary = reasons[0].sentence
    if len(reasons) > 1:
        summary += f" And {len(reasons) - 1} more."
    status = RunStatus.Value(facts.run["status"])
    return pb.ExplainRunResponse(status=status, summary=summary, reasons=reasons)


def _reasons(facts: Facts, heartbeat: timedelta) -> Iterator[Reason]:
    run = facts.run
    if run["finished_at"] is not None:
        yield _ended(facts)
        return
    held = run["status"] == "RUNNING" and not run["due"]
    if not run["enabled"] and not held:
        yield _reason(
            pb.EXPLAIN_NAMESPACE_DISABLED,
            "Its namespace is disabled: nothing in it is handed out.",
            "Enable the namespace.",
        )
    if run["cancel_requested_at"] is not None:
        yield _reason(
            pb.EXPLAIN_CANCEL_REQUESTED,
            "It was asked to cancel, and its code has not ended yet.",
            "Its cleanup may take a while. Terminate it to end it now.",
            since=run["cancel_requested_at"],
        )
    if held:
        yield _held(facts, heartbeat)
    elif facts.fleet is not None:
        yield from _due(facts, facts.fleet)
    else:
        yield from _later(facts)


def _ended(facts: Facts) -> Reason:
    run = facts.run
    failure = rows.failure(run["error"])
    if failure is not None and failure.type == _POISONED:
        return _reason(
            pb.EXPLAIN_POISONED,
            f"It was set aside: {run['crashes']} workers in a row lost it without any progress.",
            "Find what takes its worker down (memory, a crash in C code), then retry it.",
            since=run["finished_at"],
        )
    how = {"COMPLETED": "completed", "FAILED": "failed", "CANCELLED": "was cancelled"}[run["status"]]
    if run["continued_as"] is not None:
        how = "went on as another run"
    after = "" if failure is None else f" with {failure.type}: {failure.message}".rstrip(": ")
    suggestion = "" if run["status"] == "COMPLETED" else "Retry it to go on before the step that failed."
    subject = rows.identity(run["continued_as"])
    return _reason(pb.EXPLAIN_ENDED, f"It {how}{after}.", suggestion, subject, since=run["finished_at"])


def _held(facts: Facts, heartbeat: timedelta) -> Reason:
    run = facts.run
    worker = rows.identity(run["locked_by"])
    where = f"{run['hostname'] or 'a worker'} (process {run['pid']})" if run["pid"] else "a worker"
    heard: datetime | None = run["last_heartbeat_at"]
    silent = run["worker_status"] in (None, "OFFLINE") or (
        heard is not None and run["now"] - heard > heartbeat * _MISSED
    )
    if silent:
        return _reason(
            pb.EXPLAIN_WORKER_SILENT,
            f"It is held by {where}, which is silent. Its lease ends at {_clock(run['available_at'])}; then another "
            "worker takes the run.",
            "See whether that process still runs.",
            worker,
            since=heard,
            until=run["available_at"],
        )
    return _reason(pb.EXPLAIN_RUNNING, f"It is running on {where}.", "", worker, since=run["started_at"])


def _later(facts: Facts) -> Iterator[Reason]:
    run = facts.run
    until: datetime | None = run["available_at"]
    if run["parked"]:
        yield _reason(
            pb.EXPLAIN_PARKED,
            "It is parked: its code no longer asks for the steps that are on record.",
            "Deploy code that fits its history (`ctx.patched` lets both paths live), or resume it after a fix.",
        )
    elif facts.mutation_id:
        yield _reason(
            pb.EXPLAIN_WAITS_MUTATION,
            "Nobody knows whether its mutation happened, and its automation is blocked until somebody says so.",
            "Find out outside, then resolve the mutation: it happened, it did not, skip, or check again.",
            facts.mutation_id,
        )
    elif facts.waits:
        yield from map(_wait, facts.waits)
    elif until is None and run["schedule_id"] is not None:
        yield _reason(
            pb.EXPLAIN_WAITS_PREVIOUS,
            "It waits for the end of the previous run of its schedule.",
            "Cancel the previous run, or choose another overlap for the schedule.",
            rows.identity(run["schedule_id"]),
            since=run["created_at"],
        )
    elif run["attempts"] and until is not None:
        failed = f"failed {run['attempts']} {'time' if run['attempts'] == 1 else 'times'}"
        sentence = f"The workflow {failed} and is tried again at {_clock(until)}."
        yield _reason(pb.EXPLAIN_RETRIES_LATER, sentence, "", until=until)
    elif run["started_at"] is not None and until is not None:
        sentence = f"A step failed and is tried again at {_clock(until)}."
        yield _reason(pb.EXPLAIN_STEP_RETRIES_LATER, sentence, "", until=until)
    else:
        when = f"at {_clock(until)}" if until is not None else "when it is told to"
        yield _reason(pb.EXPLAIN_STARTS_LATER, f"It starts {when}.", "", since=run["created_at"], until=until)


def _wait(wait: Wait) -> Reason:
    step = wait.step_id
    if wait.status == "UNKNOWN":
        return _reason(
            pb.EXPLAIN_WAITS_RESOLUTION,
            f"Nobody knows whether the effect of step {step} happened.",
            "Find out outside, then resolve the step: applied, not applied, or failed.",
            step,
            since=wait.since,
        )
    if wait.status == "FAILED":
        sentence = f"Step {step} failed with {wait.error}, attempt {wait.attempt_number}, and is tried again"
        when = "." if wait.until is None else f" at {_clock(wait.until)}."
        return _reason(pb.EXPLAIN_STEP_RETRIES_LATER, sentence + when, "", step, until=wait.until)
    if wait.kind == "SIGNAL":
        bound = "" if wait.until is None else f", until {_clock(wait.until)}"
        return _reason(
            pb.EXPLAIN_WAITS_SIGNAL,
            f"It waits for the signal {wait.target}{bound}.",
            f"Send the signal {wait.target}.",
            wait.target,
            since=wait.since,
            until=wait.until,
        )
    if wait.kind == "CHILD_WORKFLOW":
        state = wait.child_status.lower() or "not there yet"
        return _reason(
            pb.EXPLAIN_WAITS_CHILD,
            f"It waits for the end of its child {wait.child_type}, which is {state}.",
            "See why the child has not ended.",
            wait.child_run_id,
            since=wait.since,
        )
    when = "a time that is not set" if wait.until is None else _clock(wait.until)
    return _reason(
        pb.EXPLAIN_WAITS_TIMER, f"It sleeps in {step} until {when}.", "", step, since=wait.since, until=wait.until
    )


def _due(facts: Facts, fleet: Fleet) -> Iterator[Reason]:
    run = facts.run
    since: datetime = run["available_at"]
    if run["status"] == "RUNNING":
        yield _reason(
            pb.EXPLAIN_LEASE_ENDED,
            f"Its worker fell silent and its lease ended at {_clock(since)}: it waits for another worker.",
            "",
            rows.identity(run["locked_by"]),
            since=since,
        )
    queue, kind, version = run["task_queue"], run["workflow_type"], run["version"]
    if not fleet.workers:
        yield _reason(
            pb.EXPLAIN_NO_WORKER,
            f"No worker serves the queue {queue}.",
            f"Start one: `kagzi worker MODULE --queue {queue}`.",
            queue,
            since=since,
        )
    elif not fleet.know:
        yield _reason(
            pb.EXPLAIN_NO_WORKER_OF_TYPE,
            f"{_many(fleet.workers)} the queue {queue}, and none knows the workflow {kind}.",
            f"Start a worker with {kind}, or correct the name the run was started with.",
            kind,
            since=since,
        )
    elif not fleet.suit:
        yield _reason(
            pb.EXPLAIN_NO_WORKER_OF_VERSION,
            f"Workers of the queue {queue} know {kind}, and none has its version {version}.",
            f"Start a worker that registers version {version} of {kind}.",
            version,
            since=since,
        )
    elif not fleet.take:
        sentence = "Every worker that could run it drains and takes nothing more."
        yield _reason(pb.EXPLAIN_WORKERS_DRAIN, sentence, "Start another worker.", queue, since=since)
    else:
        yield from _waits_for_slot(facts, fleet)


def _waits_for_slot(facts: Facts, fleet: Fleet) -> Iterator[Reason]:
    run = facts.run
    since: datetime = run["available_at"]
    if not fleet.free:
        yield _reason(
            pb.EXPLAIN_WORKERS_FULL,
            f"Workers could run it, but none{_looked_at(fleet)} has a free slot.",
            "Start more workers, or raise their concurrency.",
            run["task_queue"],
            since=since,
        )
    if run["suspect"]:
        yield _reason(
            pb.EXPLAIN_SUSPECT,
            f"It was lost with its worker {run['crashes']} times, so a worker takes it only while it holds no other "
            "such run.",
            "",
            since=since,
        )
    if fleet.ahead:
        number = f"{fleet.ahead}{' or more' if fleet.ahead >= 500 else ''}"
        sentence = f"{number} due runs of {run['workflow_type']} come first, by priority or age."
        yield _reason(
            pb.EXPLAIN_BEHIND_OTHERS, sentence, "Start more workers, or give it a higher priority.", since=since
        )
    if fleet.free and not run["suspect"] and not fleet.ahead:
        yield _reason(pb.EXPLAIN_DUE, "It is due, and a worker will take it within moments.", "", since=since)


def _reason(
    code: pb.ExplainCode.ValueType,
    sentence: str,
    suggestion: str,
    subject: str = "",
    *,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Reason:
    return Reason(
        code=code,
        sentence=sentence,
        suggestion=suggestion,
        subject=subject,
        since=rows.timestamp(since),
        until=rows.timestamp(until),
    )


def _many(workers: int) -> str:
    return "1 worker serves" if workers == 1 else f"{workers}{' or more' if workers >= SEEN else ''} workers serve"


def _looked_at(fleet: Fleet) -> str:
    return f" of {ASKED} that were looked at" if fleet.workers > ASKED else ""


def _clock(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
