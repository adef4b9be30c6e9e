"""`kagzi start` and `kagzi runs`, as a person runs them: tables, JSON, one-line errors and exit codes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kagzi import Context, NonRetryable, Worker, step, workflow
from kagzi.cli import app
from kagzi.cli.problems import FAILED, USAGE
from kagzi.server.app import Server
from tests.sdk.serving import serving

Kagzi = Callable[..., Awaitable[Result]]


@step
async def double(number: int) -> int:
    return 2 * number


@step
async def refuse(reason: str) -> None:
    raise NonRetryable(reason)


@workflow
async def twice(ctx: Context, number: int) -> int:
    return await ctx.step("double", double, number)


@workflow
async def hopeless(ctx: Context) -> None:
    await ctx.step("refuse", refuse, "[no] <b>")


@workflow
async def patient(ctx: Context) -> str:
    return await ctx.receive("go", str) or ""


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    async with (
        serving(database_url) as running,
        Worker(running.address, workflows=[twice, hopeless, patient]),
    ):
        yield running


@pytest.fixture
def kagzi(server: Server) -> Kagzi:
    """Runs a command against the server."""
    variables = {"KAGZI_URL": server.address, "NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"}

    async def run(*arguments: str) -> Result:
        return await asyncio.to_thread(lambda: CliRunner().invoke(app, list(arguments), env=variables))

    return run


async def answer(command: Awaitable[Result]) -> Any:
    """What a command that works prints as JSON."""
    result = await command
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


async def test_a_run_is_started_awaited_listed_and_shown(kagzi: Kagzi) -> None:
    ended = await answer(kagzi("start", "twice", "--input", "21", "--wait", "--id", "o-1", "--label", "a=b", "--json"))
    assert ended["output"] == 42
    [listed] = await answer(kagzi("runs", "list", "--type", "twice", "--label", "a=b", "--json"))
    assert (listed["run_id"], listed["id"], listed["status"]) == (ended["run_id"], "o-1", "COMPLETED")
    shown = await answer(kagzi("runs", "show", "o-1", "--json"))
    assert (shown["input"], shown["output"]) == (21, 42)
    assert [(one["step_id"], one["output"]) for one in shown["steps"]] == [("double", 42)]
    told = await kagzi("runs", "show", ended["run_id"])
    assert "double" in told.stdout
    assert "COMPLETED" in told.stdout
    assert "o-1" in (await kagzi("runs", "list")).stdout


async def test_a_run_that_fails_ends_the_command_with_one_and_is_tried_again(kagzi: Kagzi) -> None:
    failed = await kagzi("start", "hopeless", "--wait", "--json")
    assert failed.exit_code == 1
    run_id = json.loads(failed.stdout)["run_id"]
    assert f"`kagzi runs retry {run_id}` tries again" in failed.stderr
    assert "[no] <b>" in (await kagzi("runs", "show", run_id)).stdout
    again = await answer(kagzi("runs", "retry", run_id, "--json"))
    assert again["run_id"] != run_id
    watched = await kagzi("runs", "watch", again["run_id"])
    assert watched.exit_code == 1
    # Nobody looks at a screen: a line for every change.
    changes = [line.split("  ", 1)[1] for line in watched.stdout.splitlines() if "  step " in line or "  run 0" in line]
    failure = "FAILED: StepFailed: Step 'refuse' failed after 1 attempt with NonRetryable: [no] <b>"
    assert "step refuse  FAILED: NonRetryable: [no] <b>" in changes
    assert changes[-1] == f"run {again['run_id']}  {failure}"
    forked = await answer(kagzi("runs", "fork", run_id, "refuse", "--json"))
    assert forked["run_id"] not in (run_id, again["run_id"])


async def test_a_run_that_waits_is_explained_signalled_and_watched_to_its_end(kagzi: Kagzi) -> None:
    run_id = (await answer(kagzi("start", "patient", "--json")))["run_id"]
    told = await answer(kagzi("runs", "explain", run_id, "--json"))
    assert told["summary"]
    assert (await kagzi("runs", "explain", run_id)).stdout.startswith(told["summary"].split()[0])
    assert (await kagzi("runs", "signal", run_id, "go", "--input", '"now"')).exit_code == 0
    watched = await answer(kagzi("runs", "watch", run_id, "--json"))
    assert watched["output"] == "now"


async def test_runs_are_cancelled_and_terminated_and_the_status_is_told(kagzi: Kagzi) -> None:
    first = (await answer(kagzi("start", "nobody", "--json")))["run_id"]
    assert await answer(kagzi("runs", "cancel", first, "--json")) == {"run_id": first, "status": "CANCELLED"}
    second = (await answer(kagzi("start", "nobody", "--json")))["run_id"]
    assert "CANCELLED" in (await kagzi("runs", "terminate", second, "--reason", "enough")).stdout


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (("start", "twice", "--input", "{"), "--input is no JSON", USAGE),
        (("start", "twice", "--at", "tomorrow"), "--at 'tomorrow' is no time", USAGE),
        (("runs", "show", "nothing"), "nothing", FAILED),
        (("runs", "list", "--status", "LOST"), "status", USAGE),
        (("runs", "resolve", "o-1", "pay", "perhaps"), "applied, not_applied or fail", USAGE),
        (("runs", "list", "--label", "seven"), "customer=7", USAGE),
        (("schedules", "create", "s", "twice"), "--cron, --every or --text", USAGE),
        (("schedules", "create", "s", "twice", "--every", "5s", "--overlap", "x"), "--overlap 'x' must be", USAGE),
    ],
)
async def test_a_mistake_is_one_line_that_says_what_to_do(
    kagzi: Kagzi, arguments: tuple[str, ...], said: str, code: int
) -> None:
    result = await kagzi(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    [line] = result.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert said in line


async def test_an_empty_list_says_how_to_begin(kagzi: Kagzi) -> None:
    assert "kagzi start" in (await kagzi("runs", "list")).stdout
