"""`kagzi worker`: finds the workflows of a module, runs them, and starts anew when their code changes."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from kagzi.sdk.collect import collect, source_of
from kagzi.sdk.definition import workflow
from kagzi.sdk.errors import ConfigError
from tests.sdk.stage import MAIN, Caller, child, idle, serving

MODULE = """
from kagzi.sdk.definition import workflow

@workflow
async def answer(ctx) -> int:
    return {answer}
"""
_SECONDS = count(1_700_000_000)
OF_TWO_QUEUES = """
from kagzi.sdk.definition import workflow

@workflow(queue="billing")
async def invoice(ctx) -> None: ...

@workflow(queue="shipping")
async def parcel(ctx) -> None: ...
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory to work in; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    # No two texts of one second: Python would take the bytecode of one for that of the other.
    second = next(_SECONDS)
    os.utime(path, (second, second))


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, "worker", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("place", ["shop/orders.py", "shop.orders"])
def test_workflows_are_collected_by_import_path_and_by_file(here: Path, place: str) -> None:
    write(here / "shop" / "__init__.py", "")
    write(here / "shop" / "parts.py", OF_TWO_QUEUES)
    write(here / "shop" / "orders.py", f"from .parts import invoice, invoice as same\n{MODULE.format(answer=1)}")
    assert [each.name for each in collect(place)] == ["invoice", "answer"]
    assert source_of(place) == here / "shop"


def test_a_file_without_a_package_is_a_module_of_its_own(here: Path) -> None:
    write(here / "deep" / "orders.py", MODULE.format(answer=1))
    [found] = collect("deep/orders.py")
    assert found.function.__module__ == "orders"
    assert source_of("deep/orders.py") == here / "deep" / "orders.py"


def test_a_package_is_collected_from_its_front_door(here: Path) -> None:
    write(here / "shop" / "__init__.py", MODULE.format(answer=1))
    assert [each.name for each in collect("shop")] == ["answer"]
    assert [each.name for each in collect("./shop")] == ["answer"]


@pytest.mark.parametrize(
    ("place", "text", "message"),
    [
        ("nowhere", None, "no module 'nowhere' in .*give an import path"),
        ("nowhere.orders", None, "no module 'nowhere.orders'"),
        ("nowhere.py", None, "no file nowhere.py"),
        ("broken", "import nothing_there", r"broken cannot be imported: ModuleNotFoundError.*broken.py:1\)"),
        ("broken.py", "1 / 0", r"ZeroDivisionError: division by zero \(.*broken.py:1\)"),
        ("broken", "def f(", "SyntaxError"),
        ("empty", "x = 1", "empty holds no workflow: put @workflow"),
        ("signal.py", "x = 1", "rename the file"),
    ],
)
def test_what_cannot_be_collected_says_why_in_one_line(here: Path, place: str, text: str | None, message: str) -> None:
    if text is not None:
        write(here / f"{place.removesuffix('.py')}.py", text)
    with pytest.raises(ConfigError, match=message) as caught:
        collect(place)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "error: There is no module 'nowhere'"),
        (("orders", "--concurrency", "0"), "error: --concurrency (KAGZI_CONCURRENCY)"),
        (("orders", "--url", "x:y"), "error: 'x:y' (KAGZI_URL) names no server"),
        (
            ("queues",),
            "queues has no workflow for the queue 'default', only for billing, shipping: say --queue billing.",
        ),
        (("nowhere", "--watch"), "error: There is no module 'nowhere'"),
    ],
)
def test_wrong_usage_ends_with_2_and_one_line(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    write(tmp_path / "orders.py", MODULE.format(answer=1))
    write(tmp_path / "queues.py", OF_TWO_QUEUES)
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert message in line


async def test_a_refusal_of_the_server_ends_with_1_and_one_line(database_url: str, tmp_path: Path) -> None:
    write(tmp_path / "orders.py", MODULE.format(answer=1))
    async with serving(database_url) as server:
        arguments = ("orders", "--url", server.address, "--namespace", "nowhere")
        done = await asyncio.to_thread(lambda: run(*arguments, cwd=tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "nowhere" in done.stderr


async def test_a_changed_file_starts_a_new_worker_while_the_old_one_drains(database_url: str, tmp_path: Path) -> None:
    module = tmp_path / "orders.py"
    write(module, MODULE.format(answer=1))
    answer = workflow(name="answer")(idle.function)
    async with serving(database_url) as server, Caller(server.address, database_url) as caller:

        async def outputs(expected: int) -> None:
            assert await caller.ended(await caller.start(answer)) == ["COMPLETED"]
            rows = await caller.fetch("select output from kagzi.workflow_payloads order by output")
            assert [int(row["output"]) for row in rows] == list(range(1, expected + 1))

        with child(
            sys.executable, "-c", MAIN, "worker", "orders", "--watch", "--url", server.address, cwd=str(tmp_path)
        ) as watcher:
            await caller.until("select 1 from kagzi.workers where status = 'ONLINE'")
            await outputs(1)
            write(module, MODULE.format(answer=2))
            await caller.until(
                "select 1 from kagzi.workers having count(*) = 2 and count(*) filter (where status = 'ONLINE') = 1"
            )
            await outputs(2)
            write(module, "import nothing_there")
            assert watcher.stdout is not None
            lines = iter(watcher.stdout.readline, "")
            said = await asyncio.to_thread(lambda: next(line for line in lines if "waiting for a change" in line))
            assert said
            write(module, MODULE.format(answer=3))
            await caller.until("select 1 from kagzi.workers where status = 'ONLINE'")
            await outputs(3)
            watcher.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(watcher.wait, 10) == 0
        assert not await caller.fetch("select 1 from kagzi.workers where status = 'ONLINE'")
