"""What is found before anything runs: every rule with the handler it is about, all of them at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kagzi import Automation, Client, Prepared, Worker, mutation
from kagzi.automations.rehearsal import rehearse
from kagzi.errors import ConfigError
from tests.automations_sdk.declared import inbox


class Nothing:
    async def prepare(self, ctx: Any, state: Any) -> Prepared:
        return Prepared()


async def produce(ctx: Any, state: Any) -> None: ...


def rules(automation: Automation) -> set[tuple[str, str, str]]:
    return {(finding.level, finding.handler, finding.rule) for finding in automation.check()}


def test_the_example_breaks_no_rule() -> None:
    assert inbox().check() == []


def test_an_automation_needs_a_handler() -> None:
    assert rules(Automation("empty")) == {("error", "", "handlers")}


def test_a_producer_publishes_something() -> None:
    automation = Automation("x")
    automation.producer(every="5m")(produce)
    assert rules(automation) == {("error", "produce", "publishes")}


@pytest.mark.parametrize(
    ("timing", "said"),
    [
        ({}, "none of them"),
        ({"every": "5m", "cron": "* * * * *"}, "every and cron"),
        ({"every": "10 parsecs"}, "10 parsecs"),
        ({"every": "1ms"}, "one second at least"),
        ({"cron": "61 * * * *"}, "61"),
        ({"text": "whenever you like"}, "whenever you like"),
        ({"every": "5m", "timezone": "Europe/Berlinn"}, "Europe/Berlin"),
        ({"every": "5m", "timezone": 7}, "timezone=7 is no text"),
        ({"cron": 5}, "cron=5 is no text"),
        ({"text": ["daily"]}, "text=['daily'] is no text"),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_told_with_its_handler(timing: dict[str, Any], said: str) -> None:
    automation = Automation("x")
    automation.producer(publishes="t", **timing)(produce)
    automation.consumer(subscribe="t")(Nothing)
    [finding] = automation.check()
    assert (finding.level, finding.handler, finding.rule) == ("error", "produce", "schedule")
    assert said in finding.message


def test_a_consumer_subscribes_and_has_prepare() -> None:
    automation = Automation("x")
    automation.consumer()(type("Idle", (), {}))
    assert rules(automation) == {("error", "Idle", "subscribes"), ("error", "Idle", "prepare")}


def test_who_publishes_has_next() -> None:
    automation = Automation("x", accepts=["in"])
    automation.consumer(subscribe="in", publishes="out")(Nothing)
    assert rules(automation) == {("error", "Nothing", "next"), ("warning", "Nothing", "subscriber")}


def test_a_subscribed_topic_needs_a_publisher_of_the_automation_or_from_outside() -> None:
    automation = Automation("x")
    automation.consumer(subscribe="orders")(Nothing)
    assert rules(automation) == {("error", "Nothing", "publisher")}
    fed = Automation("x", accepts="orders")
    fed.consumer(subscribe="orders")(Nothing)
    assert rules(fed) == set()


def test_two_handlers_share_no_name() -> None:
    automation = Automation("x", accepts="orders")
    automation.consumer(subscribe="orders")(Nothing)
    automation.consumer(subscribe="orders")(Nothing)
    assert rules(automation) == {("error", "Nothing", "names")}


def test_phases_take_what_they_are_called_with_and_await_their_context() -> None:
    class Odd:
        def prepare(self, ctx: Any) -> Prepared:
            return Prepared()

        def next(self, ctx: Any, prepared: Any, outcome: Any) -> None: ...

    class Yields:
        async def prepare(self, ctx: Any, state: Any) -> Any:
            yield Prepared()

    async def poll(ctx: Any, state: Any) -> Any:
        yield "orders"

    automation = Automation("x", accepts="orders")
    automation.consumer(subscribe="orders")(Odd)
    automation.consumer(subscribe="orders")(Yields)
    automation.producer(every="5m", publishes="orders")(poll)
    assert rules(automation) == {
        ("error", "Odd", "signature"),
        ("error", "Odd", "async"),
        ("error", "Yields", "signature"),
        ("error", "poll", "signature"),
    }


def test_a_class_that_cannot_be_made_is_given_as_an_object() -> None:
    class Sheet(Nothing):
        def __init__(self, client: str) -> None:
            self.client = client

    automation = Automation("x", accepts="orders")
    automation.consumer(subscribe="orders")(Sheet)
    automation.consumer(subscribe="orders", name="made")(Sheet("client"))
    assert rules(automation) == {("error", "Sheet", "signature")}


@pytest.mark.parametrize("name", ["", "x" * 128, "line\nend", None, 7, "\ud800"])
def test_a_name_that_cannot_be_stored_is_refused_where_it_is_given(name: Any) -> None:
    with pytest.raises(ConfigError, match="1 to 127 bytes"):
        Automation(name)


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: Automation("x", accepts=3), "accepts must be a topic or a list of topics, got 3"),  # type: ignore[arg-type]
        (lambda: Automation("x", accepts=["\ud800"]), "a topic of accepts must be 1 to 255 bytes"),
        (lambda: Automation("x").producer(every="1m", publishes=None)(produce), "publishes must be a topic"),  # type: ignore[arg-type]
        (lambda: Automation("x").consumer(subscribe="t", timeout=0)(Nothing), "timeout=0 leaves no time"),
        (lambda: Automation("x").consumer(subscribe="t", timeout="soon")(Nothing), "timeout='soon' is not a duration"),
        (lambda: mutation(timeout="0s")(produce), "timeout='0s' leaves no time"),
        (lambda: mutation(name=5)(produce), "name must be 1 to 255 bytes"),  # type: ignore[call-overload]
        (lambda: mutation(name="")(produce), "name must be 1 to 255 bytes"),
    ],
)
def test_what_can_never_work_is_refused_where_it_is_declared(declare: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        declare()


def test_a_handlers_name_holds_no_dot() -> None:
    with pytest.raises(ConfigError, match="no dot"):
        Automation("x").consumer(subscribe="t", name="a.b")(Nothing)


def test_a_worker_refuses_an_automation_that_breaks_a_rule_and_names_them_all() -> None:
    automation = Automation("x")
    automation.producer(every="5m")(produce)
    automation.consumer(subscribe="orders")(Nothing)
    with pytest.raises(ConfigError) as caught:
        Worker("localhost:1", automations=[automation])
    assert "produce" in str(caught.value)
    assert "(rule: publishes)" in str(caught.value)
    assert "(rule: publisher)" in str(caught.value)


def test_a_worker_refuses_what_is_no_automation_and_one_of_another_queue() -> None:
    with pytest.raises(ConfigError, match="is no automation"):
        Worker("localhost:1", automations=[Client])
    elsewhere = Automation("x", queue="slow", accepts="t")
    elsewhere.consumer(subscribe="t")(Nothing)
    with pytest.raises(ConfigError, match="queue 'slow'"):
        Worker("localhost:1", automations=[elsewhere])
    with pytest.raises(ConfigError, match="Two automations are called"):
        Worker("localhost:1", automations=[inbox(), inbox()])
    with pytest.raises(ConfigError, match="something to run"):
        Worker("localhost:1")


async def test_a_rehearsal_checks_what_each_prepare_returns() -> None:
    class Greedy:
        async def prepare(self, ctx: Any, state: Any) -> Prepared:
            return Prepared(reserve={"t": ["7"]})

    class Wrong:
        async def prepare(self, ctx: Any, state: Any) -> Any:
            await ctx.peek("t")
            return {"reserve": {}}

    class Broken:
        async def prepare(self, ctx: Any, state: Any) -> Prepared:
            raise KeyError("gone")

    automation = Automation("x", accepts="t")
    for consumer in (Greedy, Wrong, Broken, Nothing):
        automation.consumer(subscribe="t")(consumer)
    found = {finding.handler: finding.message for finding in await rehearse(automation)}
    assert set(found) == {"Greedy", "Wrong", "Broken"}
    assert "which were empty" in found["Greedy"]
    assert "must return Prepared" in found["Wrong"]
    assert "KeyError" in found["Broken"]


def test_the_command_ends_with_what_it_found(tmp_path: Path) -> None:
    good = "from kagzi import Automation\nfrom tests.automations_sdk.declared import inbox\nautomation = inbox()\n"
    bad = "from kagzi import Automation\nempty = Automation('empty')\n"

    def run(source: str, *options: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "declares.py").write_text(source)
        command = [sys.executable, "-m", "kagzi.cli", "automations", "check", str(tmp_path / "declares.py"), *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    well = run(good, "--dry-run")
    assert (well.returncode, well.stdout) == (0, "email-to-sheets (poll, AddRow, Tell): all is well\n")
    ill = run(bad, "--json")
    assert ill.returncode == 1
    assert '"rule": "handlers"' in ill.stdout
    none = run("x = 1\n")
    assert none.returncode == 2
    assert none.stderr.startswith("error:")
    assert "holds no automation" in none.stderr
    leaves = run("import sys\nsys.exit(0)\n")
    assert (leaves.returncode, "declares.py cannot be imported: SystemExit" in leaves.stderr) == (2, True)
