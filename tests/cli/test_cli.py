"""The command `kagzi`, as a user runs it: a process of its own, its words, its exit codes and its signals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

KAGZI = str(Path(sys.executable).parent / "kagzi")
# Liveness bounds are allowed three times over, and what was seen is printed.
SERVES_WITHIN = 5.0
ENDS_WITHIN = 10.0


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KAGZI_")}
    return {**kept, "NO_COLOR": "1", "COLUMNS": "200", **more}


def kagzi(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [KAGZI, *arguments],
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class Running:
    """A command that serves."""

    def __init__(self, process: subprocess.Popen[str], address: str, took: float) -> None:
        self.process = process
        self.address = address
        self.took = took

    def healthy(self) -> bool:
        with grpc.insecure_channel(self.address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.communicate(timeout=3 * ENDS_WITHIN)
        return self.process.returncode, time.monotonic() - began


@contextmanager
def serving(*arguments: str, cwd: Path, **variables: str) -> Iterator[Running]:
    began = time.monotonic()
    process = subprocess.Popen(
        [KAGZI, *arguments, "--port", "0"],
        cwd=cwd,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"Kagzi listens on (\S+)\n", line)
        assert found, line + process.communicate(timeout=60)[1]
        yield Running(process, found[1], time.monotonic() - began)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _sharers() -> float:
    """How many programs want each core: a bound for who has one to himself is so many times as long."""
    return max(1.0, max(os.getloadavg()) / (os.cpu_count() or 1))


def test_dev_serves_from_nothing_and_ends_with_0_when_told(tmp_path: Path) -> None:
    with serving("dev", cwd=tmp_path) as dev:
        assert dev.healthy()
        code, ending = dev.end()
    print(f"served after {dev.took:.2f} s, ended after {ending:.2f} s")  # noqa: T201 - what was seen
    assert code == 0
    assert dev.took < 3 * SERVES_WITHIN * _sharers()
    assert ending < 3 * ENDS_WITHIN
    assert (tmp_path / ".kagzi").is_dir()


def test_dev_finds_its_database_again_and_lets_nobody_else_use_it(tmp_path: Path, data_directory: Path) -> None:
    place = {"KAGZI_DATA_DIR": str(data_directory)}
    with serving("dev", cwd=tmp_path, **place) as dev:
        second = kagzi("dev", "--port", "0", cwd=tmp_path, **place)
        assert second.returncode == 1
        assert f"process {dev.process.pid}" in second.stderr
        assert dev.healthy()
        assert dev.end(signal.SIGINT)[0] == 0
    assert kagzi("migrate", "--check", cwd=tmp_path, **place).returncode == 0


def test_server_serves_a_database_that_is_up_to_date(tmp_path: Path, database_url: str) -> None:
    with serving("server", cwd=tmp_path, KAGZI_DB_URL=database_url) as server:
        assert server.healthy()
        assert server.process.stdout is not None
        site = server.process.stdout.readline().split()[-1]
        assert httpx.get(f"{site}/readyz").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        _, errors = server.process.communicate(timeout=3 * ENDS_WITHIN)
    assert server.process.returncode == 0
    events = [json.loads(line) for line in errors.splitlines()]
    assert [event["event"] for event in events] == ["server_started", "server_stopped"]
    assert events[0]["address"] == server.address
    assert not (tmp_path / ".kagzi").exists()


def test_server_refuses_a_database_that_lacks_migrations_and_migrate_brings_them(
    tmp_path: Path, data_directory: Path
) -> None:
    from kagzi.embedded import Embedded

    with Embedded(data_directory) as postgres:
        url = {"KAGZI_DB_URL": postgres.url}
        refused = kagzi("server", "--port", "0", cwd=tmp_path, **url)
        assert refused.returncode == 1
        assert "run `kagzi migrate`" in refused.stderr
        check = kagzi("migrate", "--check", "--json", cwd=tmp_path, **url)
        assert check.returncode == 1
        missing = json.loads(check.stdout)["missing"]
        done = kagzi("migrate", "--json", cwd=tmp_path, **url)
        assert (done.returncode, json.loads(done.stdout)) == (0, {"applied": missing})
        again = kagzi("migrate", "--check", cwd=tmp_path, **url)
        assert (again.returncode, again.stdout) == (0, "The schema is up to date.\n")


def test_a_port_that_is_taken_is_said_in_one_line(tmp_path: Path, database_url: str) -> None:
    with serving("server", cwd=tmp_path, KAGZI_DB_URL=database_url) as server:
        port = server.address.rpartition(":")[2]
        second = kagzi("server", "--port", port, "--log-level", "error", cwd=tmp_path, KAGZI_DB_URL=database_url)
        assert second.returncode == 1
        [line] = second.stderr.splitlines()
        assert port in line
        assert "KAGZI_SERVER_PORT" in line


def test_a_port_for_pages_that_is_taken_is_said_in_one_line(tmp_path: Path, database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = kagzi("server", "--port", "0", "--http-port", port, cwd=tmp_path, KAGZI_DB_URL=database_url)
    assert refused.returncode == 1
    [line] = [line for line in refused.stderr.splitlines() if line.startswith("error")]
    assert port in line
    assert "KAGZI_HTTP_PORT" in line


@pytest.mark.parametrize(
    ("arguments", "variables", "said", "code"),
    [
        (["server"], {"KAGZI_SERVER_PORT": "x"}, "KAGZI_SERVER_PORT", 2),
        (["server", "--host", "192.0.2.1"], {}, "--insecure", 2),
        (["server", "--config", "absent.toml"], {}, "absent.toml", 2),
        (["dev"], {"KAGZI_SCHEDULER_BATCH_SIZE": "1"}, "KAGZI_COORDINATOR_BATCH_SIZE", 2),
        (["server"], {"KAGZI_DB_URL": "postgresql://me:hunter2@127.0.0.1:1/kagzi"}, "KAGZI_DB_URL", 1),
        (["migrate"], {"KAGZI_DB_URL": "postgresql://me:hunter2@127.0.0.1:1/kagzi"}, "KAGZI_DB_URL", 1),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_what_to_do(
    tmp_path: Path, arguments: list[str], variables: dict[str, str], said: str, code: int
) -> None:
    ended = kagzi(*arguments, cwd=tmp_path, **variables)
    assert ended.returncode == code
    [line] = ended.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert "hunter2" not in line
    assert list(tmp_path.iterdir()) == []


def test_version_and_help_load_neither_server_nor_database(tmp_path: Path) -> None:
    from importlib.metadata import version

    assert kagzi("--version", cwd=tmp_path).stdout == f"kagzi {version('kagzi')}\n"
    shown = kagzi("--help", cwd=tmp_path).stdout
    assert all(command in shown for command in ("dev", "server", "migrate"))
    code = "import kagzi.cli, sys; print(sorted({'asyncpg', 'grpc', 'pydantic'} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout == "[]\n"


def test_a_signal_while_it_starts_ends_it_too(tmp_path: Path, data_directory: Path) -> None:
    process = subprocess.Popen(
        [KAGZI, "dev", "--port", "0"],
        cwd=tmp_path,
        env=environment(KAGZI_DATA_DIR=str(data_directory)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # The database directory has an owner as soon as the embedded server begins to start.
    log = data_directory / "postgres.log"
    size = log.stat().st_size
    until = time.monotonic() + 30
    while log.stat().st_size == size and process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=3 * ENDS_WITHIN)
    assert process.returncode == 0
