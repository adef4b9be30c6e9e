"""`kagzi schedules`, as a person runs it: its tables, its JSON, its one-line errors and its exit codes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kagzi.cli import app, remote
from kagzi.server.app import Server
from tests.sdk.serving import serving

Kagzi = Callable[..., Awaitable[Result]]


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    async with serving(database_url) as running:
        yield running


@pytest.fixture
def kagzi(server: Server) -> Kagzi:
    """Runs a command of `kagzi schedules` against the server."""
    variables = {"KAGZI_URL": server.address, "NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"}

    async def run(*arguments: str) -> Result:
        return await asyncio.to_thread(lambda: CliRunner().invoke(app, ["schedules", *arguments], env=variables))

    return run


async def answer(command: Awaitable[Result]) -> Any:
    """What a command that works prints as JSON."""
    result = await command
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


async def test_a_schedule_lives_through_all_commands(kagzi: Kagzi) -> None:
    made = await kagzi(
        *("create", "nightly", "order", "--cron", "0 2 * * *", "--timezone", "Europe/Berlin", "--input", '{"id": 7}'),
        *("--overlap", "skip", "--label", "team=a", "--attempts", "3", "--timeout", "1h", "--max-catchup", "5"),
    )
    assert (made.exit_code, made.stdout.startswith("Created nightly: ")) == (0, True), made.output
    assert "Europe/Berlin" in made.stdout
    shown = await answer(kagzi("show", "nightly", "--json"))
    assert (shown["type"], shown["input"], shown["labels"], shown["overlap"]) == (
        "order",
        {"id": 7},
        {"team": "a"},
        "skip",
    )
    assert (shown["timeout"], shown["retry"]["max_attempts"], shown["max_catchup"]) == (3600.0, 3, 5)
    assert len(shown["next_fires"]) == 5
    listed = await kagzi("list")
    assert all(word in listed.stdout for word in ("nightly", "order", "scheduled", "02:00:00"))
    paused = await answer(kagzi("pause", "nightly", "--reason", "holiday", "--json"))
    assert (paused["status"], paused["pause_reason"]) == ("PAUSED", "holiday")
    assert "holiday" in (await kagzi("list", "--status", "paused")).stdout
    assert (await answer(kagzi("resume", "nightly", "--json")))["status"] == "SCHEDULED"
    changed = await answer(
        kagzi("update", "nightly", "--every", "15m", "--priority", "4", "--clear", "timeout", "--json")
    )
    assert (changed["every"], changed["priority"], changed["timeout"]) == (900.0, 4, None)
    started = await answer(kagzi("trigger", "nightly", "--input", "8", "--json"))
    assert (await answer(kagzi("trigger", "nightly", "--json")))["skipped"] is True
    assert "--overlap allow" in (await kagzi("trigger", "nightly")).stdout
    human = await kagzi("show", "nightly")
    assert all(word in human.stdout for word in (started["run_id"], "by hand", "PENDING", "next fires", '{"id": 7}'))
    [run] = await answer(kagzi("history", "nightly", "--json"))
    assert (run["run_id"], run["status"], run["scheduled_for"]) == (started["run_id"], "PENDING", None)
    assert started["run_id"] in (await kagzi("history", "nightly", "--status", "pending")).stdout
    assert "No run of nightly is FAILED." in (await kagzi("history", "nightly", "--status", "failed")).stdout
    deleted = (await kagzi("delete", "nightly")).stdout
    assert deleted.startswith("Deleted nightly. Its runs stay: kagzi schedules history nightly --template ")
    assert started["run_id"] in (await kagzi("history", "nightly", "--template", deleted.split()[-1])).stdout
    assert (await kagzi("history", "nightly")).exit_code == 1
    assert await answer(kagzi("list", "--json")) == []
    assert "kagzi schedules create" in (await kagzi("list")).stdout


async def test_past_slots_are_counted_and_made_up_for(kagzi: Kagzi) -> None:
    await kagzi("create", "hourly", "order", "--cron", "@hourly", "--paused")
    now = datetime.now(UTC)
    span = ("--since", (now - timedelta(hours=3)).isoformat(), "--until", now.isoformat())
    counted = await kagzi("backfill", "hourly", *span, "--dry-run")
    assert "Would start 3; 0 had their run." in counted.stdout
    few = await kagzi("backfill", "hourly", *span, "--dry-run", "--overlap", "queue_one")
    assert "Would start 2; 0 had their run; 1 left out." in few.stdout
    assert (few.stdout.count("would start"), few.stdout.count("left out.")) == (2, 1)
    done = await answer(kagzi("backfill", "hourly", *span, "--overlap", "queue_all", "--json"))
    assert (done["started"], len(done["slots"]), done["skipped"], done["dry_run"]) == (3, 3, [], False)
    again = await kagzi("backfill", "hourly", *span)
    assert "Started 0; 3 had their run." in again.stdout


async def test_fire_times_are_shown_of_what_exists_and_of_what_does_not(kagzi: Kagzi) -> None:
    await kagzi("create", "daily", "order", "--cron", "@daily")
    assert len((await answer(kagzi("next", "daily", "--count", "4", "--json")))["fires"]) == 4
    far = await answer(kagzi("next", "daily", "--count", "1", "--after", "2090-01-01T12:00Z", "--json"))
    assert far["fires"] == ["2090-01-02T00:00:00+00:00"]
    bounds = ("--after", "2090-01-01T00:00Z", "--end-at", "2090-01-01T00:25Z")
    assert len((await answer(kagzi("next", "--cron", "*/10 * * * *", *bounds, "--json")))["fires"]) == 2
    proposed = await kagzi("next", "--text", "every friday at 5pm", "--timezone", "Asia/Tokyo", "--count", "2")
    lines = proposed.stdout.strip().splitlines()
    assert len(lines) == 3
    assert all(line.startswith("Fri ") and line.endswith("17:00:00 +0900") for line in lines[1:])


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["create", "x", "order"], 2, "--cron, --every or --text"),
        (["create", "x", "order", "--cron", "0 0 30 2 *"], 2, "never"),
        (["create", "x", "order", "--every", "1ms"], 2, "too short"),
        (["create", "x", "order", "--every", "1h", "--timezone", "Mars/Olympus"], 2, "Mars/Olympus"),
        (["create", "x", "order", "--every", "1h", "--input", "{"], 2, "no JSON"),
        (["create", "x", "order", "--every", "1h", "--start-at", "tomorrow"], 2, "2026-06-01T12:00Z"),
        (["create", "x", "order", "--every", "1h", "--label", "team"], 2, "customer=7"),
        (["create", "x", "order", "--every", "1h", "--overlap", "both"], 2, "queue_one"),
        (["show", "nowhere"], 1, "nowhere"),
        (["update", "nowhere"], 2, "nothing to change"),
        (["update", "nowhere", "--clear", "cron"], 2, "takes nothing away"),
        (["backfill", "nowhere", "--since", "2026-06-01"], 2, "zone"),
        (["backfill", "nowhere", "--since", "2026-06-01T00:00Z", "--overlap", "both"], 2, "queue_all"),
        (["history", "nowhere"], 1, "nowhere"),
        (["history", "nowhere", "--template", "x"], 2, "--template is no UUID"),
        (["next"], 2, "name a schedule"),
        (["next", "nowhere", "--timezone", "UTC"], 2, "leave them out"),
        (["next", "nowhere", "--after", "noon"], 2, "--after"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
async def test_a_mistake_is_one_line_that_says_what_to_do(
    kagzi: Kagzi, arguments: list[str], code: int, says: str
) -> None:
    result = await kagzi(*arguments)
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.strip().splitlines()) == 1
    assert says in result.stderr
    assert await answer(kagzi("list", "--json")) == []


async def test_nobody_there_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PATIENCE", "100ms")
    variables = {"KAGZI_URL": "127.0.0.1:1", "NO_COLOR": "1"}
    result = await asyncio.to_thread(lambda: CliRunner().invoke(app, ["schedules", "list"], env=variables))
    assert (result.exit_code, len(result.stderr.strip().splitlines())) == (3, 1)
    assert "kagzi dev" in result.stderr
