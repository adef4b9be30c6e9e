"""What each workload is meant to reach on two cores, and which of its figures tells. Nothing is asserted: a miss is
said.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.records import OURS, Records


@dataclass(frozen=True, slots=True)
class Target:
    """A figure with its bound: at least, or at most."""

    workload: str
    figure: str
    bound: float
    at_least: bool
    unit: str
    what: str

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def told(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:,g} {self.unit}"


TARGETS = (
    Target("w1", "runs_per_s", 3_000, True, "runs/s", "runs of 3 steps, 100 at once"),
    Target("w2", "p50_ms", 5, False, "ms", "1 step, start to result, p50"),
    Target("w2", "p99_ms", 12, False, "ms", "the same, p99"),
    Target("w3", "starts_per_s", 8_000, True, "starts/s", "5,000 starts, no worker"),
    Target("w4", "runs_per_s", 3_000, True, "runs/s", "one worker drains those"),
    Target("w5", "steps_per_s", 800, True, "steps/s", "1,000 steps in a row"),
    Target("w5", "replay_ms", 100, False, "ms", "claim to next step after a kill at 500"),
    Target("w6", "run_s", 0.15, False, "s", "500 parallel steps"),
    Target("w7", "cpu_percent", 1, False, "% of a core", "nothing to do"),
    Target("w7", "statements_per_s", 5, False, "/s", "statements with nothing to do"),
    Target("w8", "all_woken_s", 4, False, "s", "10,000 runs wake in one second"),
    Target("w8", "earliest_s", 0, True, "s", "none of them early"),
    Target("w9", "all_fired_s", 1, False, "s", "1,000 schedules due in one second"),
    Target("w9", "others_fired_ms_p99", 50, False, "ms", "lateness of the others, p99"),
    Target("w10", "runs_lost_percent", 15, False, "%", "W1 beside old runs"),
    Target("w10", "p50_gained_percent", 15, False, "%", "W2 beside old runs"),
    Target("w11", "events_per_s", 500, True, "events/s", "producer to consumer to consumer"),
    Target("w12", "server_mb", 150, False, "MB", "server after W1"),
    Target("w12", "server_when_full_mb", 150, False, "MB", "server after W10"),
    Target("w12", "worker_mb", 100, False, "MB", "worker after W1"),
)
# What the ratio to W1 of each other system is meant to be.
RATIOS = {"dbos": 30.0, "restate": 7.0}


def misses(records: Records) -> list[str]:
    """What was measured and not reached, in words."""
    found = []
    for target in TARGETS:
        seen = records.spread(target.workload, OURS, target.figure)
        if seen is not None and not target.met(seen.median):
            found.append(f"{target.workload.upper()}, {target.what}: {seen.median:,.4g}, wanted {target.told()}")
    return found
