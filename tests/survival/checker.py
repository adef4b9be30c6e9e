"""Joins what the database says, what the effects log says and what clients were told, and states every guarantee that
was broken. It also lists the steps that ran again, each with the worker whose death is the reason. It changes nothing.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import asyncpg

from tests.survival.effects import Entry

# A failed or drained attempt is followed by another; so may be one whose worker died.
_FOLLOWED = {"FAILED", "INTERRUPTED"}
# Workflows whose runs are ended from outside.
_ENDABLE = {"patrol"}


@dataclass(slots=True)
class Told:
    """What a client was told of one run: everything here was acknowledged."""

    run_id: str
    # Empty when it has none.
    external_id: str
    signals: list[str] = field(default_factory=list)
    # How it stands or has ended, as it was told when it was asked to end and when it had.
    statuses: list[str] = field(default_factory=list)
    result: Any = None


@dataclass(frozen=True, slots=True)
class Repeat:
    """A step that ran again because its worker died after its effect and before its result was durable."""

    run: str
    step: str
    worker: str
    ms_between: float

    def __str__(self) -> str:
        return f"{self.step} of {self.run}: {self.worker} died {self.ms_between:.0f} ms after the effect"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A time in which a worker, or with no name every one, could not keep its lease: it stood still, was cut off, or
    there was no server or no database.
    """

    worker: str
    began: int
    ended: int


@dataclass(slots=True)
class Findings:
    """Nothing is wrong when `violations` is empty."""

    violations: list[str] = field(default_factory=list)
    repeats: list[Repeat] = field(default_factory=list)
    # Bodies that ran again because their worker could not keep its lease.
    lost_leases: int = 0
    # Bodies of others' runs, begun by a worker that had stood still between looking at its lease and beginning.
    standstills: int = 0


@dataclass(frozen=True, slots=True)
class _Record:
    """What the database holds."""

    runs: Mapping[str, asyncpg.Record]
    # By attempt id, all of a run, and the latest by run and step.
    attempts: Mapping[str, asyncpg.Record]
    of_run: Mapping[str, Sequence[asyncpg.Record]]
    latest: Mapping[tuple[str, str], asyncpg.Record]
    signals: Mapping[str, asyncpg.Record]


async def check(
    url: str,
    told: Sequence[Told],
    entries: Sequence[Entry],
    deaths: Mapping[str, tuple[int, int]],
    troubles: Sequence[Trouble] = (),
    lease: float | None = None,
) -> Findings:
    """`deaths` says between which two moments each worker was killed, `troubles` when leases could be lost. With
    `lease`, in seconds, a body that ran again no sooner than a lease could run out has lost it: the machine was slow.
    """
    record = await _read(url)
    found = Findings()
    found.violations += _of_clients(record, told)
    found.violations += _of_runs(record)
    found.violations += _of_steps(record, entries)
    for execution, following in _followed(entries):
        _judge(found, record, execution, following, deaths, troubles, lease)
    return found


async def _read(url: str) -> _Record:
    connection = await asyncpg.connect(url)
    try:
        runs = await connection.fetch(
            "select r.run_id::text, r.external_id, r.status, r.parent_run_id::text, r.workflow_type, r.error::text, "
            "convert_from(p.output, 'utf8') as output "
            "from kagzi.workflow_runs r left join kagzi.workflow_payloads p using (namespace, run_id) "
            "where r.status not in ('SCHEDULED', 'PAUSED') and r.automation is null"
        )
        steps = await connection.fetch(
            "select run_id::text, step_id, attempt_id::text, attempt_number, is_latest, kind, status, effect, "
            "completed_seq, convert_from(output, 'utf8') as output, child_run_id::text from kagzi.step_runs"
        )
        signals = await connection.fetch("select signal_id::text, received_by::text from kagzi.signals")
    finally:
        await connection.close()
    known = {row["run_id"]: row for row in runs}
    # Those of automations are judged by the books of the outside.
    steps = [row for row in steps if row["run_id"] in known]
    of_run: defaultdict[str, list[asyncpg.Record]] = defaultdict(list)
    for row in steps:
        of_run[row["run_id"]].append(row)
    return _Record(
        known,
        {row["attempt_id"]: row for row in steps},
        of_run,
        {(row["run_id"], row["step_id"]): row for row in steps if row["is_latest"]},
        {row["signal_id"]: row for row in signals},
    )


def _of_clients(record: _Record, told: Iterable[Told]) -> Iterable[str]:
    names = Counter(row["external_id"] for row in record.runs.values() if row["external_id"])
    for one in told:
        run = record.runs.get(one.run_id)
        if run is None:
            yield f"the acknowledged start of {one.run_id} is lost"
            continue
        if one.external_id and names[one.external_id] != 1:
            yield f"{one.external_id} was started {names[one.external_id]} times"
        if one.result is not None and json.loads(run["output"] or "null") != one.result:
            yield f"{one.run_id} returned {run['output']}, its client was told {one.result}"
        for status in one.statuses:
            if status in ("COMPLETED", "FAILED", "CANCELLED") and status != run["status"]:
                yield f"{one.run_id} is {run['status']}, its client was told {status}"
        for signal in one.signals:
            row = record.signals.get(signal)
            if row is None:
                yield f"the acknowledged signal {signal} to {one.run_id} is lost"
            elif row["received_by"] is None:
                yield f"the signal {signal} to {one.run_id} was never received"


def _of_runs(record: _Record) -> Iterable[str]:
    children = Counter(run["parent_run_id"] for run in record.runs.values() if run["parent_run_id"])
    for run in record.runs.values():
        run_id = run["run_id"]
        if run["status"] != "COMPLETED" and not (run["status"] == "CANCELLED" and run["workflow_type"] in _ENDABLE):
            yield f"{run['workflow_type']} {run_id} is {run['status']}: {run['error']}"
        latest = [step for step in record.of_run.get(run_id, ()) if step["is_latest"]]
        asked = [step for step in latest if step["kind"] == "CHILD_WORKFLOW"]
        if children[run_id] != len(asked):
            yield f"{run_id} asked for {len(asked)} children and has {children[run_id]}"
        order = Counter(step["completed_seq"] for step in latest if step["completed_seq"])
        yield from (f"{run_id} has {count} results in place {seq}" for seq, count in order.items() if count > 1)
        if run["workflow_type"] == "journey" and run["status"] == "COMPLETED":
            yield from _of_journey(record, run)


def _of_journey(record: _Record, run: asyncpg.Record) -> Iterable[str]:
    """Its report is made of the results on record, whoever handed them to the code, and how often."""
    report = json.loads(run["output"])

    def result(step: str) -> Any:
        row = record.latest.get((run["run_id"], step))
        return None if row is None or row["output"] is None else json.loads(row["output"])

    parts = [result("part"), *(result(f"part#{number}") for number in range(2, len(report["parts"]) + 1))]
    expected = {
        "prepared": result("prepare"),
        "parts": parts,
        "word": result("word"),
        "failure": f"{report['name']} never works",
        "errand": result("errand"),
        "finished": result("finish"),
    }
    for what, value in expected.items():
        if report[what] != value:
            yield f"{run['run_id']} reports {what} as {report[what]!r}, on record is {value!r}"
    doomed = [row for row in record.of_run.get(run["run_id"], ()) if row["step_id"] == "doomed"]
    failures = sum(row["status"] == "FAILED" for row in doomed)
    if failures != 2:
        yield f"doomed of {run['run_id']} failed {failures} times, of 2 that its policy allows"


def _of_steps(record: _Record, entries: Iterable[Entry]) -> Iterable[str]:
    effects = {entry.attempt: entry for entry in entries if entry.what == "effect"}
    for row in record.attempts.values():
        where = f"{row['step_id']} of {row['run_id']}, attempt {row['attempt_number']},"
        if row["status"] == "COMPLETED" and not row["is_latest"]:
            yield f"{where} was set aside although it is complete"
        if row["status"] != "COMPLETED" or row["kind"] != "FUNCTION" or row["effect"]:
            # What an effect did is in the books of the outside.
            continue
        effect = effects.get(row["attempt_id"])
        if effect is None:
            yield f"{where} is complete without an effect"
        elif json.loads(row["output"]) != effect.value:
            yield f"{where} is recorded as {row['output']}, its body returned {effect.value!r}"


@dataclass(frozen=True, slots=True)
class _Execution:
    begun: Entry
    effect: Entry | None


def _followed(entries: Iterable[Entry]) -> Iterable[tuple[_Execution, _Execution | None]]:
    """Every execution of a body with the one that followed it, if any."""
    bodies: dict[tuple[str, str], dict[str, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for entry in entries:
        bodies[entry.run, entry.step][entry.attempt].append(entry)
    for attempts in bodies.values():
        executions = [
            _Execution(several[0], next((entry for entry in several if entry.what == "effect"), None))
            for several in attempts.values()
        ]
        yield from pairwise([*sorted(executions, key=lambda one: one.begun.at), None])


def _judge(
    found: Findings,
    record: _Record,
    execution: _Execution,
    following: _Execution | None,
    deaths: Mapping[str, tuple[int, int]],
    troubles: Sequence[Trouble],
    lease: float | None,
) -> None:
    """A body runs again only after a recorded failure, or when its worker died or lost its lease before its result was
    durable.
    """
    begun = execution.begun
    row = record.attempts.get(begun.attempt)
    status = row["status"] if row is not None else "not on record"
    what = f"{begun.step} of {begun.run} in {begun.worker}"
    if following is None and row is None and stood_still(begun, troubles, lease):
        found.standstills += 1
        return
    if following is None:
        run = record.runs.get(begun.run)
        if status not in ("COMPLETED", "FAILED") and (run is None or run["status"] != "CANCELLED"):
            found.violations.append(f"{what} ran last and is {status}")
        return
    if status == "COMPLETED":
        if following.begun.attempt not in record.attempts and stood_still(following.begun, troubles, lease):
            return
        found.violations.append(f"{what} is complete and ran again in {following.begun.worker}")
        return
    if status in _FOLLOWED:
        return
    killed, dead = deaths.get(begun.worker, (None, None))
    if killed is None or dead is None or killed > following.begun.at:
        # A worker begins nothing with less than a sixth of its lease left.
        slow = lease is not None and following.begun.at - begun.at > lease / 6 * 1e9
        if slow or any(_explains(trouble, begun, following.begun) for trouble in troubles):
            found.lost_leases += 1
            return
        found.violations.append(f"{what} ran again in {following.begun.worker} while its worker lived")
    elif execution.effect is not None:
        between = (dead - execution.effect.at) / 1e6
        found.repeats.append(Repeat(begun.run, begun.step, begun.worker, between))


def _explains(trouble: Trouble, begun: Entry, following: Entry) -> bool:
    return trouble.worker in ("", begun.worker) and trouble.began < following.at and begun.at < trouble.ended


def stood_still(begun: Entry, troubles: Iterable[Trouble], lease: float | None) -> bool:
    """Whether its worker had been stopped a moment before. What it had set out to begin by then nobody can hold back; a
    moment later it knows whether its leases are lost.
    """
    return any(
        trouble.worker == begun.worker and trouble.began < begun.at < trouble.ended - (lease or 0) / 2 * 1e9
        for trouble in troubles
    )
