"""How runs behaved while things failed, read from the effects log and the database: nothing begins after a cancel but
what the cleanup asks for, no timer is early, the runs of a dead worker go on elsewhere in time, and what could finish
while its worker drained is not done again. It states what was not so, and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tests.survival.checker import Trouble, stood_still
from tests.survival.effects import Entry
from tests.survival.record import rows

Deaths = Mapping[str, tuple[int, int]]


@dataclass(slots=True)
class Conduct:
    """Nothing is wrong when `violations` is empty."""

    violations: list[str] = field(default_factory=list)
    cancelled: int = 0
    # Seconds from a worker's death until a body of its runs began elsewhere, where nothing else was in the way.
    reclaims: list[float] = field(default_factory=list)


async def watch(
    url: str,
    entries: Sequence[Entry],
    deaths: Deaths,
    drained: Collection[str],
    troubles: Sequence[Trouble],
    lease: float,
) -> Conduct:
    """`drained` are workers that were told to end, `lease` is that of all of them, in seconds."""
    found = Conduct()
    await _cancels(url, [entry for entry in entries if not stood_still(entry, troubles, lease)], found)
    await _timers(url, entries, found)
    await _drains(url, [entry for entry in entries if entry.worker in drained], troubles, found)
    for entry, before in _followed(entries):
        died = deaths.get(before.worker, (0, 0))[1]
        if before.at < died < entry.at and not any(_between(trouble, died, entry.at) for trouble in troubles):
            found.reclaims.append((entry.at - died) / 1e9)
    # Liveness is allowed three times what is promised.
    slow = [took for took in found.reclaims if took > 3 * (lease + 1)]
    found.violations += [
        f"a run of a dead worker went on after {took:.1f} s, with a lease of {lease:g}" for took in slow
    ]
    return found


async def _cancels(url: str, entries: Sequence[Entry], found: Conduct) -> None:
    ended = await rows(
        url,
        "select r.run_id::text, r.error->>'type', coalesce(s.told, false), coalesce(s.home, false) "
        "from kagzi.workflow_runs r left join (select run_id, bool_or(kind = 'CANCEL') as told, "
        "bool_or(step_id = 'home') as home from kagzi.step_runs where status = 'COMPLETED' group by 1) s "
        "using (run_id) where r.workflow_type = 'patrol' and r.status = 'CANCELLED'",
    )
    found.cancelled = len(ended)
    homes = {entry.run: entry.at for entry in reversed(entries) if entry.step == "home" and entry.what == "begin"}
    for entry in entries:
        if entry.what == "begin" and entry.step.startswith("round") and entry.at > homes.get(entry.run, entry.at):
            found.violations.append(f"{entry.step} of {entry.run} began after its cleanup had")
    for run, kind, told, home in ended:
        if kind == "Cancelled" and told and not home:
            found.violations.append(f"{run} was told of its cancel and did not go home")


async def _timers(url: str, entries: Sequence[Entry], found: Conduct) -> None:
    """A journey's first step after its rest comes no sooner than the last one before it and the rest together. What a
    worker did that had lost the run meanwhile is not what the journey waited for.
    """
    plans = await rows(
        url,
        "select r.run_id::text, convert_from(p.input, 'utf8') from kagzi.workflow_runs r "
        "join kagzi.workflow_payloads p using (namespace, run_id) "
        "where r.workflow_type = 'journey' and r.status = 'COMPLETED'",
    )
    parts = "select attempt_id::text from kagzi.step_runs where step_id like 'part%' and status = 'COMPLETED'"
    recorded = {attempt for (attempt,) in await rows(url, parts)}
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    for entry in entries:
        if entry.attempt in recorded and entry.what == "effect":
            before[entry.run] = entry.at
        elif entry.step == "doomed" and entry.what == "begin":
            after.setdefault(entry.run, entry.at)
    for run, plan in plans:
        rest = int(json.loads(plan)["rest"].removesuffix("ms").removesuffix("s"))
        if run in before and after[run] - before[run] < rest * 1e6:
            slept = (after[run] - before[run]) / 1e6
            found.violations.append(f"{run} was to rest for {rest} ms and rested for {slept:.1f}")


async def _drains(url: str, entries: Sequence[Entry], troubles: Sequence[Trouble], found: Conduct) -> None:
    """No body here takes as long as a worker may drain."""
    cut = {
        run for (run,) in await rows(url, "select attempt_id::text from kagzi.step_runs where status = 'INTERRUPTED'")
    }
    for entry in entries:
        late = entry.at + int(60e9)
        if (
            entry.attempt in cut
            and entry.what == "begin"
            and not any(_between(one, entry.at, late) for one in troubles)
        ):
            found.violations.append(
                f"{entry.step} of {entry.run} was interrupted in {entry.worker} with time to finish"
            )


def _followed(entries: Sequence[Entry]) -> list[tuple[Entry, Entry]]:
    """Every beginning of a body with the one before it, of the same step."""
    last: dict[tuple[str, str], Entry] = {}
    pairs = []
    for entry in entries:
        if entry.what == "begin":
            if (entry.run, entry.step) in last:
                pairs.append((entry, last[entry.run, entry.step]))
            last[entry.run, entry.step] = entry
    return pairs


def _between(trouble: Trouble, began: int, ended: int) -> bool:
    return trouble.began < ended and began < trouble.ended
