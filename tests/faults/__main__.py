"""`python -m tests.faults` runs the whole table of faults at full size and prints what was seen, row by row;
`python -m tests.faults soak MINUTES` lets the nemesis go on for so long. SEED chooses the moments; without one the
clock does, and it is printed, so that a run can be had again.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

from kagzi.embedded import Embedded
from tests.database import BOUNDS, room, temporary
from tests.faults.campaign import wage
from tests.faults.nemesis import Nemesis
from tests.house.tree import ROOT

ROWS = Path(__file__).with_name("rows.toml")
# Tests that are elsewhere have their own names for size and seed.
SIZES = {"SCHEDULES_SECS": "60", "SWARM": "100", "SWARM_SECS": "30"}


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def faults(seed: int) -> int:
    """Every row once; answers the exit code."""
    rows: dict[str, dict[str, Any]] = tomllib.loads(ROWS.read_text(encoding="utf-8"))
    nodes = {node: number for number, row in rows.items() for node in (*row.get("whole", ()), *row.get("tests", ()))}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        figures, report = Path(directory, "figures"), Path(directory, "report")
        environment = {**os.environ, **SIZES, "FAULTS": "whole", "SEED": str(seed), "SURVIVAL_SEED": str(seed)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        code = subprocess.run(
            [*command, "-o", "timeout=600", "tests/faults", *nodes],
            cwd=ROOT,
            env={**environment, "FIGURES": str(figures)},
            check=False,
        ).returncode
        seen = _read(figures)
        passed, failed = _outcomes(report)
    say(f"\nseed {seed}, {time.monotonic() - began:.0f} s")
    say("row  runs    faults  violations  slowest recovery  fault")
    for number, row in sorted(rows.items()):
        one = seen[int(number)]
        figures_of = f"{one['runs']:<7} {one['faults']:<7} {one['violations']:<11} {one['slowest']:>6.2f} s"
        say(f"{number:<4} {figures_of if one['runs'] else '-':<42} {row['fault']}{_why(row)}")
    total = {name: sum(one[name] for one in seen.values()) for name in ("runs", "faults", "violations")}
    slowest = max((one["slowest"] for one in seen.values()), default=0.0)
    say(
        f"{passed} tests passed, {failed} failed; {total['runs']} runs, {total['faults']} faults injected, "
        f"{total['violations']} violations, slowest recovery {slowest:.2f} s"
    )
    return code


def _why(row: dict[str, Any]) -> str:
    return f" ({row['apart']})" if "apart" in row else ""


def _read(path: Path) -> dict[int, dict[str, Any]]:
    """What the tests of each row saw, added up."""
    seen: dict[int, dict[str, Any]] = defaultdict(lambda: {"runs": 0, "faults": 0, "violations": 0, "slowest": 0.0})
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        one = json.loads(line)
        row = seen[one["row"]]
        for name in ("runs", "faults", "violations"):
            row[name] += one[name]
        row["slowest"] = max(row["slowest"], one["slowest"])
    return seen


def _outcomes(report: Path) -> tuple[int, int]:
    """How many tests passed, and how many did not."""
    text = report.read_text(encoding="utf-8") if report.exists() else ""
    head = text.partition("<testcase")[0]
    counts = dict(part.split("=", 1) for part in head.replace('"', "").split() if part.count("=") == 1)
    tests, bad = (int(counts.get("tests", 0)), int(counts.get("failures", 0)) + int(counts.get("errors", 0)))
    return tests - bad - int(counts.get("skipped", 0)), bad


def soak(seed: int, minutes: float) -> int:
    """The nemesis for so long; answers the exit code."""
    told = time.monotonic()

    def watch(nemesis: Nemesis) -> None:
        nonlocal told
        if time.monotonic() - told > 60:
            told = time.monotonic()
            took, fault = max(nemesis.recoveries)
            say(f"{nemesis.injected.total()} faults so far, slowest recovery {took:.1f} s ({fault})")

    with temporary(room()) as data, tempfile.TemporaryDirectory() as directory, Embedded(data, settings=BOUNDS) as own:
        summary = asyncio.run(wage(own, Path(directory), seed, seconds=60 * minutes, watch=watch))
    say(str(summary))
    for violation in summary.violations:
        say(f"VIOLATION: {violation}")
    return 1 if summary.violations else 0


if __name__ == "__main__":
    chosen = int(os.environ.get("SEED") or time.time())
    say(f"seed {chosen}")
    sys.exit(soak(chosen, float(sys.argv[2])) if sys.argv[1:2] == ["soak"] else faults(chosen))
