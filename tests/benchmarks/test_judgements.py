"""What the benchmarks make of their figures: medians, ratios, misses, and how a soak is judged. No speed is."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import machine, soak
from benchmarks.page import page
from benchmarks.peers import environment
from benchmarks.peers.environment import Unavailable
from benchmarks.records import Records
from benchmarks.soak import Minute
from benchmarks.targets import misses
from benchmarks.workloads import MEASUREMENTS, NAMES

MINUTE = Minute(
    number=1,
    runs=60_000,
    p50_ms=5.0,
    p99_ms=20.0,
    server_mb=100.0,
    worker_mb=60.0,
    live_rows=500_000,
    dead_rows=20_000,
    index_mb=80.0,
    steal_percent=0.0,
)


def records() -> Records:
    kept = Records(machine={"cores": "2"}, missing={"absurd": "no network"})
    for runs in (2_900, 2_500, 3_500):
        kept.add("w1", "kagzi", {"runs_per_s": runs, "steal_percent": 0.0})
    kept.add("w1", "dbos", {"runs_per_s": 100, "steal_percent": 0.0})
    kept.add("w1", "limit", {"batched_100_runs_per_s": 14_500, "steal_percent": 0.0})
    kept.add("w2", "kagzi", {"p50_ms": 4.0, "p99_ms": 9.0, "steal_percent": 0.0})
    kept.add("w2", "dbos", {"p50_ms": 2.0, "p99_ms": 90.0, "steal_percent": 0.0})
    return kept


def test_the_twelve_workloads_are_measured_each_by_its_name() -> None:
    named = [name for measurement in MEASUREMENTS for name in measurement.names]
    assert sorted(named) == sorted(NAMES)
    assert {f"w{number}" for number in range(1, 13)} <= set(NAMES)


def test_records_that_are_kept_are_read_back_the_same(tmp_path: Path) -> None:
    records().write(tmp_path / "kept.json")
    read = Records.read(tmp_path / "kept.json")
    assert read.spread("w1", "kagzi", "runs_per_s") == records().spread("w1", "kagzi", "runs_per_s")
    assert (read.machine, read.missing) == (records().machine, records().missing)


def test_a_page_tells_ratios_either_way_shares_of_the_limit_misses_and_who_is_missing() -> None:
    told = page(records())
    assert "100 (29.0 x)" in told
    assert "2 (0.5 x)" in told
    assert "| 20 % |" in told
    assert "not measured: absurd: no network" in told
    assert misses(records()) == ["W1, runs of 3 steps, 100 at once: 2,900, wanted ≥ 3,000 runs/s"]


def test_a_steady_soak_is_fine() -> None:
    steady = [MINUTE, MINUTE, replace(MINUTE, live_rows=5_000_000, index_mb=900.0, server_mb=104.0)]
    assert all(soak.judged(steady).values())


@pytest.mark.parametrize(
    ("last", "word"),
    [
        (replace(MINUTE, server_mb=110.0), "memory"),
        (replace(MINUTE, p99_ms=25.0), "p99"),
        (replace(MINUTE, dead_rows=150_000), "dead"),
        (replace(MINUTE, index_mb=110.0), "indexes"),
    ],
    ids=("memory", "p99", "dead", "indexes"),
)
def test_what_grows_too_much_is_named(last: Minute, word: str) -> None:
    wrong = [what for what, fine in soak.judged([MINUTE, MINUTE, last]).items() if not fine]
    assert len(wrong) == 1
    assert word in wrong[0]


def test_a_peer_that_cannot_be_installed_is_an_error_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_FOLDER", tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable, match="npm could not be run"):
        environment.npm("restate-server", "nothing", "restate-server")


def test_cpu_time_and_memory_of_a_process_are_counted_with_those_it_started() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'sum(range(10**7)); print(1); input()'])"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        [_, child] = machine.family(process.pid)
        both, below = machine.cpu_seconds([process.pid]), machine.cpu_seconds([child])
        assert both > below > 0
        assert machine.memory_mb([process.pid]) > 1
        process.communicate(b"\n")


def test_a_workload_that_does_not_exist_is_refused_by_name() -> None:
    command = [sys.executable, "-m", "benchmarks", "w13"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert (done.returncode, "w13 is no workload" in done.stderr) == (2, True)
