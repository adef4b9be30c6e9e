"""Compares what the outside has written down itself with what the engine says of automations and effects, and states
what differs: an acknowledged event that is lost, one that is not consumed by one run that ended well, a change made
twice or for nothing or never settled, two handlers of one automation at the same time. It changes nothing.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.automations_sdk.test_swarm import overlaps
from tests.survival.checker import Trouble
from tests.survival.record import rows

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Books:
    """Everything the outside knows: rows are changes, marks the beginnings and ends of handlers."""

    rows: Sequence[Entry]
    marks: Sequence[Entry]


async def audit(url: str, books: Books, published: Iterable[tuple[str, str]], troubles: Sequence[Trouble]) -> list[str]:
    """What is wrong, once every automation rests."""
    excused = {id(entry) for entry in (*books.rows, *books.marks) if _after_a_stop(entry, troubles)}
    found = await _of_events(url, published)
    found += await _of_ledger(url)
    found += await _of_rows(url, books, excused)
    pairs = overlaps([dict(mark) for mark in books.marks if id(mark) not in excused])
    return found + [f"runs {one} and {other} of {name} ran at the same time" for name, one, other in pairs]


def _after_a_stop(entry: Entry, troubles: Sequence[Trouble]) -> bool:
    """Whether whoever wrote it had stood still meanwhile: what such a process does outside nobody can stop."""
    at = entry["at"] * 1e9 - (time.time_ns() - time.monotonic_ns())
    return any(trouble.worker == entry["worker"] and trouble.began < at < trouble.ended for trouble in troubles)


async def _of_events(url: str, published: Iterable[tuple[str, str]]) -> list[str]:
    events = await rows(url, "select automation, event_id from kagzi.events where topic = 'mail'")
    found = [f"the acknowledged event {one[1]} of {one[0]} is lost" for one in published if one not in set(events)]
    held = await rows(
        url,
        "select d.automation, d.event_id, d.consumer, d.status, r.status from kagzi.deliveries d "
        "left join kagzi.workflow_runs r on r.namespace = d.namespace and r.run_id = d.run_id "
        "where d.status <> 'PENDING' and (d.status, r.status) is distinct from ('CONSUMED', 'COMPLETED')",
    )
    found += [f"{event} of {name} is {status} to {who} by a run {run}" for name, event, who, status, run in held]
    return found


async def _of_ledger(url: str) -> list[str]:
    unsettled = await rows(
        url, "select automation, mutation_id, status from kagzi.mutations where status not in ('APPLIED', 'FAILED')"
    )
    # A change that is known not to have happened ends its run, and the events are given back.
    failed = await rows(
        url,
        "select r.automation, r.run_id, r.status, r.error::text from kagzi.workflow_runs r "
        "where r.automation is not null and r.status <> 'COMPLETED' and not exists "
        "(select from kagzi.mutations m where m.holder_id = r.run_id and m.status = 'FAILED')",
    )
    return [f"mutation {mutation} of {name} is {status}" for name, mutation, status in unsettled] + [
        f"handler run {run} of {name} is {status}: {error}" for name, run, status, error in failed
    ]


async def _of_rows(url: str, books: Books, excused: set[int]) -> list[str]:
    """A change for each event that was consumed and for each purchase that ended, and no other."""
    due = set(
        await rows(
            url,
            "select automation, event_id from kagzi.deliveries where topic = 'mail' and status = 'CONSUMED' "
            "union all select 'purchase', external_id from kagzi.workflow_runs "
            "where workflow_type = 'purchase' and status = 'COMPLETED'",
        )
    )
    made: defaultdict[tuple[str, str], list[Entry]] = defaultdict(list)
    for row in books.rows:
        made[row["of"], row["event"]].append(row)
    found = [f"{event} of {name} was to change the outside and has not" for name, event in due - made.keys()]
    for (name, event), several in made.items():
        counted = [row for row in several if id(row) not in excused]
        if len(counted) > 1:
            found.append(f"{event} of {name} has changed the outside {len(counted)} times: {counted}")
        if counted and (name, event) not in due:
            found.append(f"{event} of {name} has changed the outside and is not on record as consumed")
    return found
