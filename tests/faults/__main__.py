"""`python -m tests.faults` runs the whole table of faults at full size and prints what was seen, row by row;
`python -m tests.faults soak MINUTES` lets the nemesis go on for so long. SEED chooses the moments; without one the
clock does, and it is printed, so that a run can be had again.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from kagzi.embedded import Embedded
from tests.database import BOUNDS, room, temporary
from tests.faults import vitals
from tests.faults.campaign import wage
from tests.faults.nemesis import Nemesis
from tests.house.tree import ROOT

ROWS = Path(__file__).with_name("rows.toml")
PROCESSES = os.environ.get("PROCESSES") or "2"
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
            [*command, "-o", "timeout=600", "-n", PROCESSES, "--dist", "loadfile", "tests/faults", *nodes],
            cwd=ROOT,
            env={**environment, "FIGURES": str(figures)},
            check=False,
        ).returncode
        seen, ended = _read(figures), _outcomes(report)
    say(f"\nseed {seed}, {time.monotonic() - began:.0f} s")
    say("row  passed  failed  runs    faults  violations  slowest recovery  fault")
    for number, row in sorted(rows.items()):
        outcomes = _of_row(row, ended)
        counts = f"{outcomes['passed']:<7} {outcomes['failed']:<7}"
        one = seen[int(number)]
        figures_of = f"{one['runs']:<7} {one['faults']:<7} {one['violations']:<11} {one['slowest']:>6.2f} s"
        say(f"{number:<4} {counts} {figures_of if one['runs'] else '-':<45} {row['fault']}{_why(row)}")
    total = {name: sum(one[name] for one in seen.values()) for name in ("runs", "faults", "violations")}
    slowest = max((one["slowest"] for one in seen.values()), default=0.0)
    outcomes = Counter(ended.values())
    say(
        f"{outcomes['passed']} tests passed, {outcomes['failed']} failed, {outcomes['skipped']} skipped; "
        f"{total['runs']} runs, {total['faults']} faults injected, {total['violations']} violations, "
        f"slowest recovery {slowest:.2f} s"
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


def _outcomes(report: Path) -> dict[str, str]:
    """How each test ended, by its name in dotted form."""
    text = report.read_text(encoding="utf-8") if report.exists() else ""
    ended = {}
    for case in text.split("<testcase ")[1:]:
        found = re.match(r'classname="([^"]*)" name="([^"\[]*)(\[[^"]*)?"', case)
        if found is not None:
            bad, skipped = "<failure" in case or "<error" in case, "<skipped" in case
            ended[f"{found[1]}::{found[2]}{found[3] or ''}"] = "failed" if bad else "skipped" if skipped else "passed"
    return ended


def _of_row(row: dict[str, Any], ended: dict[str, str]) -> Counter[str]:
    names = {node.replace(".py::", "::").replace("/", ".") for node in (*row.get("whole", ()), *row.get("tests", ()))}
    return Counter(outcome for name, outcome in ended.items() if name.partition("[")[0] in names)


def soak(seed: int, minutes: float) -> int:
    """The nemesis for so long; answers the exit code."""
    told = time.monotonic()

    async def watch(nemesis: Nemesis) -> None:
        nonlocal told
        if time.monotonic() - told > 60:
            told = time.monotonic()
            took, fault = max(nemesis.recoveries)
            say(
                f"{nemesis.injected.total()} faults so far, slowest recovery {took:.1f} s ({fault}); "
                f"{await vitals.look(nemesis.estate)}"
            )

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
