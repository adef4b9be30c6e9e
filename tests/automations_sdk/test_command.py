"""`kagzi automations`, as a person runs it: its tables, its JSON, its one-line errors and its exit codes."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import kagzi.testing
from kagzi import Automation, MutateContext, PrepareContext, Prepared, SyncClient, mutation
from kagzi.cli import app
from kagzi.errors import ConfigError, NotFound, PreconditionFailed
from kagzi.server.clearance import Clearance
from kagzi.testing import Environment
from tests.automations_sdk.declared import inbox

Kagzi = Callable[..., Awaitable[Result]]


@mutation
async def send(what: str) -> str:
    raise ConnectionError(f"{what} got lost")


def doubtful() -> Automation:
    """Its one mutation ends in doubt that only a person can settle."""
    automation = Automation("doubtful", accepts="mail")

    @automation.consumer(subscribe="mail")
    class Send:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            found = await ctx.peek("mail", limit=1)
            return Prepared(reserve={"mail": [event.id for event in found]}, title="Send a mail")

        async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
            await ctx.mutate(send, "hello")

    return automation


@pytest.fixture
async def env() -> AsyncIterator[Environment]:
    async with kagzi.testing.environment(automations=[inbox("inbox"), doubtful()]) as made:
        await made.settle()
        yield made


@pytest.fixture
def kagzi_(env: Environment) -> Kagzi:
    """Runs a command of `kagzi automations` against the server."""
    variables = {"KAGZI_URL": env.url, "NO_COLOR": "1", "COLUMNS": "240", "TERM": "dumb"}

    async def run(*arguments: str) -> Result:
        return await asyncio.to_thread(lambda: CliRunner().invoke(app, ["automations", *arguments], env=variables))

    return run


async def answer(command: Awaitable[Result]) -> Any:
    """What a command that works prints as JSON."""
    result = await command
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


async def test_an_automation_is_looked_at_from_every_side(kagzi_: Kagzi) -> None:
    listed = await kagzi_("list")
    assert all(word in listed.stdout for word in ("inbox", "doubtful", "ACTIVE", "moves next")), listed.output
    shown = await kagzi_("show", "inbox")
    assert all(word in shown.stdout for word in ("poll", "AddRow", "Tell", "email.received", "every 5 minutes"))
    found = await answer(kagzi_("show", "inbox", "--state-of", "poll", "--json"))
    assert (found["status"], found["state"], found["pending"]) == ("ACTIVE", {"cursor": 1}, 0)
    events = await answer(kagzi_("events", "inbox", "--payloads", "--json"))
    assert [(event["topic"], event["payload"]) for event in events] == [
        ("row.created", {"row": 8}),
        ("email.received", {"from": "Ann"}),
    ]
    assert "AddRow CONSUMED" in (await kagzi_("events", "inbox", "--topic", "email.received")).stdout
    inputs = await kagzi_("inputs", "inbox", "--status", "done")
    assert all(word in inputs.stdout for word in ("gmail/email/1", "Email from Ann", "DONE"))
    lineage = await kagzi_("input", "inbox", "gmail", "email", "1")
    assert all(word in lineage.stdout for word in ("append_row", "APPLIED", "COMPLETED", "row.created"))


async def test_what_retention_has_removed_is_neither_shown_nor_counted(kagzi_: Kagzi, env: Environment) -> None:
    assert (await kagzi_("pause", "inbox")).exit_code == 0
    assert (
        await kagzi_("publish", "inbox", "email.received", "--id", "9", "--payload", '{"from": "Bob"}')
    ).exit_code == 0
    # On a clock that goes on by itself everything is older than that by now.
    assert await Clearance(env._server.database, timedelta(milliseconds=1), 100).clear(math.inf)
    events = await answer(kagzi_("events", "inbox", "--json"))
    assert [(event["topic"], event["id"]) for event in events] == [("email.received", "9")]
    assert (await answer(kagzi_("show", "inbox", "--json")))["pending"] == 1
    assert (await answer(kagzi_("inputs", "inbox", "--json"))) == []
    gone = await kagzi_("input", "inbox", "gmail", "email", "1")
    assert (gone.exit_code, "retention may have removed it" in gone.stderr) == (1, True), gone.stderr
    assert (await kagzi_("resume", "inbox")).exit_code == 0
    await env.settle()
    shown = await answer(kagzi_("show", "inbox", "--json"))
    assert (shown["status"], shown["pending"]) == ("ACTIVE", 0)


async def test_an_automation_is_acted_on(kagzi_: Kagzi, env: Environment) -> None:
    paused = await kagzi_("pause", "inbox")
    assert paused.stdout == "inbox: It is paused.\n"
    told = await kagzi_("publish", "inbox", "email.received", "--id", "9", "--payload", '{"from": "Bob"}')
    assert "1 new, 0 replaced" in told.stdout
    assert "PAUSED and does not act" in told.stdout
    assert (await kagzi_("list", "--status", "paused")).stdout.count("inbox") == 1
    assert (await kagzi_("resume", "inbox")).exit_code == 0
    await env.settle()
    assert (await answer(kagzi_("show", "inbox", "--json")))["pending"] == 0
    assert (await kagzi_("run-now", "inbox")).exit_code == 0
    await env.settle()
    assert (await answer(kagzi_("show", "inbox", "--state-of", "poll", "--json")))["state"] == {"cursor": 2}
    assert "Skipped 0 deliveries" in (await kagzi_("skip", "inbox", "gmail", "email", "1")).stdout


async def test_a_person_answers_for_a_mutation(kagzi_: Kagzi, env: Environment) -> None:
    await env.client.automations.publish("doubtful", "mail", id="1")
    await env.settle()
    shown = await kagzi_("show", "doubtful")
    assert "Nobody knows whether send" in shown.stdout
    assert "kagzi automations resolve doubtful" in shown.stdout
    assert "check-again" not in shown.stdout, "it has no reconciler to ask"
    for command in ("retry", "run-now"):
        refused = await kagzi_(command, "doubtful")
        assert refused.exit_code == 1
        assert refused.stderr.startswith("error: ")
        assert "say what became of it with `kagzi automations resolve`" in refused.stderr
    resolved = await kagzi_("resolve", "doubtful", "happened", "--result", '"receipt"', "--reason", "saw it")
    assert resolved.stdout == "send of Send is APPLIED.\n"
    await env.settle()
    assert (await answer(kagzi_("show", "doubtful", "--json")))["status"] == "ACTIVE"
    late = await kagzi_("resolve", "doubtful", "did-not")
    assert (late.exit_code, "no mutation of doubtful waits" in late.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("show", "nobody"), 1, "nobody"),
        (("list", "--status", "asleep"), 2, "must be one of ACTIVE, PAUSED, BLOCKED"),
        (("publish", "inbox", "email.received", "--id", "1", "--payload", "{"), 2, "--payload is no JSON"),
        (("publish", "inbox", "elsewhere", "--id", "1"), 2, "elsewhere"),
        (("resolve", "inbox", "perhaps"), 2, "perhaps"),
        (("resolve", "inbox", "skip", "--result", "3"), 2, "--result goes with `happened`, and not with `skip`"),
        (("resolve", "inbox", "skip", "--mutation", "nope"), 2, "--mutation is no UUID"),
        (("show", "inbox", "--state-of", "pole"), 1, "there is no handler of 'inbox' called 'pole'"),
        (("input", "inbox", "gmail", "email", "404"), 1, "404"),
    ],
)
async def test_what_cannot_be_done_is_one_line_on_stderr(
    kagzi_: Kagzi, arguments: tuple[str, ...], code: int, said: str
) -> None:
    result = await kagzi_(*arguments)
    assert result.exit_code == code, result.output
    assert said in result.stderr


_NO_TEXT: dict[Callable[[Any], Any], str] = {
    lambda to: to.publish("inbox", "email.received", id=5): "id must be text, got 5",
    lambda to: to.publish("inbox", "email.received", id="\ud800"): "id holds half of a surrogate pair",
    lambda to: to.publish("inbox", 5, id="5"): "topic must be text, got 5",
    lambda to: to.publish("inbox", "email.received", id="5", input="mail"): r"input must be Input\(source, type, id\)",
    lambda to: to.publish_many("inbox", [5]): "events must be NewEvent",
    lambda to: to.get(5): "name must be text, got 5",
    lambda to: to.get("inbox", state_of=5): "state_of must be text",
    lambda to: to.skip_input("inbox", "gmail", "email", 1): "the id of an input must be text, got 1",
    lambda to: list(to.events("inbox", id=1)): "id must be text, got 1",
}


async def test_the_client_without_await_does_the_same(env: Environment) -> None:
    def look() -> None:
        with SyncClient(env.url) as client:
            assert [info.name for info in client.automations.list()] == ["doubtful", "inbox"]
            assert client.automations.get("inbox").handlers["poll"].kind == "producer"
            assert [event.id for event in client.automations.events("inbox", topic="email.received")] == ["1"]
            assert [str(found.input) for found in client.automations.inputs("inbox", limit=5)] == ["gmail/email/1"]
            assert client.automations.pause("inbox").status == "PAUSED"
            assert client.automations.resume("inbox").status == "ACTIVE"
            with pytest.raises(NotFound):
                client.automations.get("nobody")
            for asked, said in _NO_TEXT.items():
                with pytest.raises(ConfigError, match=said):
                    asked(client.automations)
            assert [event.id for event in client.automations.events("inbox", topic="email.received")] == ["1"]
            with pytest.raises(ConfigError, match="resolution='maybe' must be one of"):
                client.automations.resolve_mutation("inbox", "x", "maybe")  # type: ignore[arg-type]

    await asyncio.to_thread(look)


async def test_run_now_is_refused_while_a_handler_runs() -> None:
    began, let_go = asyncio.Event(), asyncio.Event()
    automation = Automation("busy", accepts="t")

    @automation.consumer(subscribe="t")
    class Busy:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            began.set()
            await let_go.wait()
            return Prepared()

    async with kagzi.testing.environment(automations=[automation]) as env:
        await asyncio.wait_for(began.wait(), 10)
        with pytest.raises(PreconditionFailed):
            await env.client.automations.run_now("busy")
        let_go.set()
        await env.settle()
        assert (await env.client.automations.run_now("busy")).status == "ACTIVE"
