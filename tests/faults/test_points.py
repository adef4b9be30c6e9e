"""The fault points: off unless a process is told otherwise when it starts, and then exactly what was asked for."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from itertools import pairwise

import asyncpg
import pytest

from kagzi import faults
from tests.house.tree import SOURCE


def process(text: str, code: str) -> subprocess.CompletedProcess[str]:
    """A process that is told of faults, and visits points."""
    return subprocess.run(
        [sys.executable, "-c", f"from kagzi import faults\n{code}"],
        env={**os.environ, faults.VARIABLE: text},
        capture_output=True,
        text=True,
        check=False,
    )


def test_they_are_off_where_nobody_turned_them_on() -> None:
    assert not faults.ON
    faults.reach("transaction.commit")


def test_each_point_is_visited_somewhere_and_no_other() -> None:
    texts = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    visited = [point for text in texts for point in re.findall(r'faults\.reach\("([\w.]+)"\)', text)]
    assert set(visited) == set(faults.POINTS)


def test_a_point_is_visited_only_behind_the_question_whether_any_is_on() -> None:
    for path in SOURCE.rglob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        for before, line in pairwise(lines):
            assert "faults.reach(" not in line or before.lstrip().startswith("if faults.ON"), path


def test_a_crash_comes_at_the_visit_that_was_named() -> None:
    visits = "for n in range(5): print(n, flush=True); faults.reach('worker.begin')"
    ended = process("worker.begin=crash@3", visits)
    assert (ended.returncode, ended.stdout.split()) == (-signal.SIGKILL, ["0", "1", "2"])


def test_other_points_pass() -> None:
    assert process("worker.begin=crash", "faults.reach('worker.ended')").returncode == 0


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("40P01", asyncpg.DeadlockDetectedError),
        ("40001", asyncpg.SerializationError),
        ("57P01", asyncpg.AdminShutdownError),
        ("08006", asyncpg.ConnectionFailureError),
    ],
)
def test_an_error_is_the_one_that_the_driver_would_raise(code: str, kind: type[Exception]) -> None:
    [fault] = faults.read(f"transaction.commit=error:{code}")
    with pytest.raises(kind, match=code):
        fault.happen()


def test_a_share_of_the_visits_is_the_same_for_the_same_seed() -> None:
    def chosen(seed: int) -> list[bool]:
        [fault] = faults.read("transaction.commit=stall:0%5")
        chance = random.Random(seed)
        return [fault.due(chance) for _ in range(1_000)]

    assert chosen(1) == chosen(1)
    assert chosen(1) != chosen(2)
    assert 0 < sum(chosen(1)) < 150


@pytest.mark.parametrize("text", ["nowhere=crash", "worker.begin", "worker.begin=explode", "worker.begin=crash@x"])
def test_what_is_no_fault_is_refused_with_the_points_there_are(text: str) -> None:
    with pytest.raises(faults.UnknownFault, match=r"transaction\.commit"):
        faults.read(text)
    assert process(text, "").returncode != 0
