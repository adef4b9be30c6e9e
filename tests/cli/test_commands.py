"""Every command as a process of its own, against one server with one worker: its words, its JSON, its exit code, and
the calls that it makes, which are those that the table of the house says.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kagzi.cli import app, asking
from tests.cli.relay import Relay, relayed
from tests.cli.shop import VARIABLE
from tests.database import Databases
from tests.house import surface
from tests.house.tree import ROOT

KAGZI = str(Path(sys.executable).parent / "kagzi")
LIMIT = 60.0
# Calls that each command made, over the whole file.
MADE: defaultdict[str, set[str]] = defaultdict(set)


class Ended:
    """How a command ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self) -> Any:
        """What it printed, once it did what was asked."""
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """Its one line on stderr, and nothing else."""
        [line] = self.err.strip().splitlines()
        assert line.startswith("error: ")
        return line


class Shop:
    """A server, a worker, and a person who types commands."""

    def __init__(self, relay: Relay, code: Path, variables: dict[str, str]) -> None:
        self._relay = relay
        self._variables = variables
        self.code = code

    def kagzi(self, *arguments: str, given: str = "", **variables: str) -> Ended:
        """Runs a command and writes down the calls it made. The first time it is a process of its own; a process costs
        half a second, and the second one shows nothing new.
        """
        before = len(self._relay.calls)
        command, env = command_of(arguments), {**self._variables, **variables}
        ended = _inside(arguments, env, given) if command in MADE else _outside(arguments, env, given)
        MADE[command].update(self._relay.calls[before:])
        return ended

    def until(self, ready: Callable[[Any], bool], *arguments: str) -> Any:
        """The JSON of a command, once it is as wished."""
        end = time.monotonic() + LIMIT
        while True:
            told = self.kagzi(*arguments, "--json").json
            if ready(told):
                return told
            assert time.monotonic() < end, told


def _outside(arguments: tuple[str, ...], env: dict[str, str], given: str) -> Ended:
    done = subprocess.run(
        [KAGZI, *arguments], cwd=ROOT, env=env, input=given, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def _inside(arguments: tuple[str, ...], env: dict[str, str], given: str) -> Ended:
    done = CliRunner().invoke(app, list(arguments), env=env, input=given)
    return Ended(done.exit_code, done.stdout, done.stderr)


def command_of(arguments: tuple[str, ...]) -> str:
    """The words that name the command; none for what is asked of `kagzi` itself."""
    known = surface.commands()
    return next((name for name in (" ".join(arguments[:2]), *arguments[:1]) if name in known), "")


@contextmanager
def spoken(*arguments: str, variables: dict[str, str]) -> Iterator[dict[str, Any]]:
    """A process that says in one line of JSON what it does, and goes on doing it."""
    process = subprocess.Popen([KAGZI, *arguments], cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT)


@pytest.fixture(scope="module")
def shop(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """What all tests of this file share."""
    code = tmp_path_factory.mktemp("shop") / "fickle"
    code.write_text("first", encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KAGZI_")}
    variables = {
        **kept,
        "NO_COLOR": "1",
        "PYTHONPATH": str(ROOT),
        VARIABLE: str(code),
        "KAGZI_DATA_DIR": str(code.parent),
    }
    url = databases.create()
    with ExitStack() as stack:
        stack.callback(databases.drop, url)
        serve = ("server", "--port", "0", "--log-level", "error", "--json")
        server = stack.enter_context(spoken(*serve, variables={**variables, "KAGZI_DB_URL": url}))
        relay = stack.enter_context(relayed(server["address"]))
        # Workers speak to the server itself: what the relay hears is what people ask for.
        work = ("worker", "tests.cli.shop", "--residents", "0", "--json")
        working = stack.enter_context(spoken(*work, variables={**variables, "KAGZI_URL": server["address"]}))
        assert "twice" in working["runs"]
        made = Shop(relay, code, {**variables, "KAGZI_URL": relay.address, "KAGZI_DB_URL": url})
        made.until(lambda found: len(found) == 1, "workers", "list")
        yield made


def test_a_run_is_started_shown_and_looked_into(shop: Shop) -> None:
    started = shop.kagzi("start", "twice", "--input", "21", "--id", "o-1", "--label", "a=b", "--wait", "--json").json
    assert started["output"] == 42
    [listed] = shop.kagzi("runs", "list", "--type", "twice", "--label", "a=b", "--json").json
    assert (listed["run_id"], listed["id"]) == (started["run_id"], "o-1")
    shown = shop.kagzi("runs", "show", "o-1")
    assert all(word in shown.out for word in (started["run_id"], "COMPLETED", "double", "━"))
    assert shop.kagzi("runs", "show", started["run_id"], "--json").json["output"] == 42
    assert shop.kagzi("runs", "step", "o-1", "double", "--json").json["output"] == 42
    assert shop.kagzi("runs", "watch", "o-1", "--json").json["status"] == "COMPLETED"
    assert "completed" in shop.kagzi("runs", "explain", "o-1").out


def test_a_run_is_started_for_every_line_of_a_file(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "inputs.jsonl"
    file.write_text("1\n2\n\n3\n", encoding="utf-8")
    again = ("start", "twice", "--each", str(file), "--id", "line-{n}", "--wait", "--json")
    first = shop.kagzi(*again).json
    assert [one["output"] for one in first] == [2, 4, 6]
    assert {run["id"] for run in shop.kagzi("runs", "list", "--json").json} >= {"line-1", "line-2", "line-3"}
    assert len(shop.kagzi("start", "twice", "--each", "-", given="4\n5\n").out.split()) == 2
    file.write_text('1\n{"id": \n', encoding="utf-8")
    broken = shop.kagzi("start", "twice", "--each", str(file), "--label", "from=broken")
    assert (broken.code, "line 2" in broken.error) == (2, True)
    assert shop.kagzi("runs", "list", "--label", "from=broken", "--json").json == []
    assert shop.kagzi("start", "twice", "--each", str(file), "--id", "same").code == 2
    file.write_text("null\n", encoding="utf-8")
    failed = shop.kagzi("start", "hopeless", "--each", str(file), "--wait")
    assert (failed.code, "1 of 1 runs" in failed.err) == (1, True)


def test_a_run_that_failed_is_told_with_its_traceback_retried_and_forked(shop: Shop) -> None:
    failed = shop.kagzi("start", "hopeless", "--wait", "--json")
    assert failed.code == 1
    run_id = json.loads(failed.out)["run_id"]
    step = shop.kagzi("runs", "step", run_id, "refuse")
    assert "Traceback" in step.out
    assert "no such [card] <b>" in step.out
    again = shop.kagzi("runs", "retry", run_id, "--json").json["run_id"]
    watched = shop.kagzi("runs", "watch", again)
    assert (watched.code, "FAILED" in watched.out) == (1, True)
    assert shop.kagzi("runs", "fork", run_id, "refuse", "--json").json["run_id"] not in (run_id, again)


def test_runs_are_signalled_cancelled_and_terminated(shop: Shop) -> None:
    one, two, three = (shop.kagzi("start", "patient", "--json").json["run_id"] for _ in range(3))
    assert shop.kagzi("runs", "signal", one, "go", "--input", '"now"', "--json").json["signal"] == "go"
    assert shop.kagzi("runs", "watch", one, "--json").json["output"] == "now"
    shop.kagzi("runs", "cancel", two, "--reason", "enough")
    assert shop.kagzi("runs", "watch", two).code == 1
    assert shop.kagzi("runs", "terminate", three, "--json").json["status"] == "CANCELLED"


def test_a_person_answers_for_an_effect(shop: Shop) -> None:
    run_id = shop.kagzi("start", "doubtful", "--json").json["run_id"]
    shop.until(lambda told: told["reasons"][0]["code"] == "WAITS_RESOLUTION", "runs", "explain", run_id)
    assert shop.kagzi("runs", "resolve", run_id, "pay", "applied", "--result", '"paid"').code == 0
    assert shop.kagzi("runs", "watch", run_id, "--json").json["output"] == "paid"


def test_a_run_whose_code_changed_goes_on_when_it_fits_again(shop: Shop) -> None:
    run_id = shop.kagzi("start", "fickle", "--json").json["run_id"]
    shop.until(lambda run: run["status"] == "SLEEPING", "runs", "show", run_id)
    shop.code.write_text("second", encoding="utf-8")
    shop.kagzi("runs", "signal", run_id, "go", "--input", '"on"')
    shop.until(lambda told: told["reasons"][0]["code"] == "PARKED", "runs", "explain", run_id)
    shop.code.write_text("first", encoding="utf-8")
    assert shop.kagzi("runs", "resume", run_id).code == 0
    assert shop.kagzi("runs", "watch", run_id, "--json").json["output"] == 2


def test_a_schedule_lives_through_its_commands(shop: Shop) -> None:
    made = shop.kagzi("schedules", "create", "nightly", "twice", "--cron", "0 2 * * *", "--input", "1", "--json").json
    assert made["id"] == "nightly"
    assert [one["id"] for one in shop.kagzi("schedules", "list", "--json").json] == ["nightly"]
    assert shop.kagzi("schedules", "update", "nightly", "--every", "1h", "--json").json["every"] == 3600
    assert shop.kagzi("schedules", "pause", "nightly", "--reason", "holiday").code == 0
    assert "paused (asked): holiday" in shop.kagzi("schedules", "list").out
    assert shop.kagzi("schedules", "resume", "nightly").code == 0
    run_id = shop.kagzi("schedules", "trigger", "nightly", "--json").json["run_id"]
    assert run_id in shop.kagzi("schedules", "show", "nightly").out
    since = (datetime.now(UTC) - timedelta(hours=3)).isoformat()
    assert shop.kagzi("schedules", "backfill", "nightly", "--since", since, "--json").json["started"] >= 2
    assert len(shop.kagzi("schedules", "next", "nightly", "--count", "3").out.splitlines()) == 3
    assert run_id in shop.kagzi("schedules", "history", "nightly").out
    assert shop.kagzi("schedules", "delete", "nightly").code == 0
    assert shop.kagzi("schedules", "show", "nightly").code == 1


def test_an_automation_lives_through_its_commands(shop: Shop) -> None:
    shop.until(lambda found: found["input"]["status"] == "DONE", "automations", "input", "inbox", "gmail", "email", "1")
    assert {one["name"] for one in shop.kagzi("automations", "list", "--json").json} == {"inbox", "post"}
    assert "AddRow" in shop.kagzi("automations", "show", "inbox").out
    assert shop.kagzi("automations", "run-now", "inbox").code == 0
    assert shop.kagzi("automations", "pause", "inbox", "--json").json["status"] == "PAUSED"
    assert shop.kagzi("automations", "resume", "inbox", "--json").json["status"] == "ACTIVE"
    assert "email.received" in shop.kagzi("automations", "events", "inbox").out
    assert "gmail/email/1" in shop.kagzi("automations", "inputs", "inbox").out
    assert shop.kagzi("automations", "skip", "inbox", "gmail", "email", "1").code == 0
    checked = shop.kagzi("automations", "check", "tests.cli.shop", "--json").json
    assert {one["automation"] for one in checked} == {"inbox", "post"}


def test_a_person_answers_for_a_mutation(shop: Shop) -> None:
    assert shop.kagzi("automations", "publish", "post", "mail", "--id", "1").code == 0
    shop.until(lambda found: found["status"] == "BLOCKED", "automations", "show", "post")
    refused = shop.kagzi("automations", "retry", "post")
    assert (refused.code, bool(refused.error)) == (1, True)
    resolved = shop.kagzi("automations", "resolve", "post", "happened", "--result", '"receipt"', "--json").json
    assert resolved["status"] == "APPLIED"


def test_namespaces_are_kept(shop: Shop) -> None:
    made = shop.kagzi(
        "namespaces", "create", "billing", "--description", "[bills]", "--keep", "completed=7d", "--json"
    ).json
    assert made["already_exists"] is False
    assert "existed already" in shop.kagzi("namespaces", "create", "billing").out
    shown = shop.kagzi("namespaces", "show", "billing", "--json").json
    assert shown["retention"]["completed_ms"] == 7 * 86_400_000
    changed = shop.kagzi("namespaces", "update", "billing", "--keep", "failed=forever", "--json").json
    assert (changed["retention"]["completed_ms"], changed["retention"]["failed_ms"]) == (7 * 86_400_000, 0)
    back = shop.kagzi("namespaces", "update", "billing", "--keep", "completed=default", "--json").json
    assert back["retention"]["completed_ms"] is None
    assert "enable billing" in shop.kagzi("namespaces", "disable", "billing").out
    assert [one["name"] for one in shop.kagzi("namespaces", "list", "--disabled", "--json").json] == ["billing"]
    assert "[bills]" in shop.kagzi("namespaces", "list").out
    assert shop.kagzi("namespaces", "enable", "billing", "--json").json["enabled"] is True


def test_keys_are_made_listed_and_revoked(shop: Shop) -> None:
    made = shop.kagzi("keys", "create", "--role", "reader", "--name", "for [charts]", "--json").json
    assert made["secret"].startswith("kagzi_")
    listed = shop.kagzi("keys", "list")
    assert all(word in listed.out for word in (made["key_id"], "reader", "valid", "for [charts]"))
    assert made["secret"] not in listed.out
    assert shop.kagzi("keys", "revoke", made["key_id"]).code == 0
    assert shop.kagzi("keys", "list", "--json").json == []


def test_what_waits_and_how_it_went_is_told(shop: Shop) -> None:
    run_id = shop.kagzi("start", "nobody", "--json").json["run_id"]
    depths = {one["workflow_type"]: one for one in shop.kagzi("queues", "--json").json}
    assert (depths["nobody"]["oldest_run_id"], depths["nobody"]["workers"]) == (run_id, 0)
    assert "nobody" in shop.kagzi("queues").out
    assert {one["workflow_type"] for one in shop.kagzi("types", "--json").json} >= {"twice", "patient"}
    assert "twice" in shop.kagzi("types").out
    told = shop.kagzi("stats", "--since", "1h", "--json").json
    assert "UNSERVED_RUNS" in {one["code"] for one in told["attention"]}
    assert "In 1h: started" in shop.kagzi("stats").out
    found = shop.kagzi("doctor", "--json")
    assert found.code == 1
    assert "default: unserved runs" in {one["check"] for one in json.loads(found.out)["findings"]}
    assert shop.kagzi("runs", "terminate", run_id).code == 0


def test_a_worker_is_shown_and_drained(shop: Shop) -> None:
    with spoken("worker", "tests.cli.shop", "--queue", "side", "--json", variables=shop._variables):
        [side] = shop.until(lambda found: len(found) == 1, "workers", "list", "--queue", "side")
        assert side["worker_id"][:18] in shop.kagzi("workers", "list").out
        shown = shop.kagzi("workers", "show", side["worker_id"][:18])
        assert all(word in shown.out for word in (side["worker_id"], "ONLINE", "side", "twice"))
        drained = shop.kagzi("workers", "drain", side["worker_id"], "--wait", "--json").json
        assert (drained["status"], drained["running"]) == ("OFFLINE", 0)
    assert shop.kagzi("workers", "list", "--queue", "side", "--json").json == []
    assert side["worker_id"] in {one["worker_id"] for one in shop.kagzi("workers", "list", "--all", "--json").json}


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (("workers", "show", "zz"), "no worker's id begins with 'zz'", 1),
        (("workers", "list", "--status", "ASLEEP"), "ONLINE, DRAINING, OFFLINE", 2),
        (("workers", "drain", "00000000-0000-0000-0000-000000000000"), "no worker", 1),
        (("workers", "drain", "x", "--timeout", "soon"), "soon", 2),
        (("namespaces", "create", "x" * 256), "name", 2),
        (("namespaces", "create", "x", "--keep", "all=7d"), "completed, failed, cancelled, events", 2),
        (("namespaces", "create", "x", "--keep", "failed=never"), "never", 2),
        (("namespaces", "create", "x", "--keep", "events=-1d"), "-1d", 2),
        (("namespaces", "update", "default"), "nothing to change", 2),
        (("namespaces", "show", "nowhere"), "nowhere", 1),
        (("stats", "--since", "soon"), "soon", 2),
        (("queues", "--namespace", "nowhere"), "nowhere", 1),
        (("types", "--url", "https://x"), "https", 2),
        (("runs", "step", "nothing", "pay"), "nothing", 1),
        (("completion", "tcsh"), "bash, zsh, fish", 2),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else None,
)
def test_a_mistake_is_one_line_that_says_what_to_do(
    shop: Shop, arguments: tuple[str, ...], said: str, code: int
) -> None:
    ended = shop.kagzi(*arguments)
    assert (ended.code, ended.out) == (code, "")
    assert said in ended.error


def test_a_server_that_does_not_answer_is_told_from_one_that_refuses(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shop.kagzi("queues", "--namespace", "nowhere").code == 1
    monkeypatch.setattr(asking, "_PATIENCE", 0.1)
    silent = shop.kagzi("queues", "--url", "127.0.0.1:1")
    assert (silent.code, "kagzi dev" in silent.error) == (3, True)


def test_a_shell_completes_commands_options_and_names(shop: Shop) -> None:
    script = """
        source <(kagzi completion bash)
        complete_it() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _kagzi_completion kagzi; echo "${COMPREPLY[*]}"
        }
        complete_it kagzi sched
        complete_it kagzi runs list --status f
        complete_it kagzi start tw
        complete_it kagzi start tw --url 127.0.0.1:1 --queue ''
    """
    path = f"{Path(KAGZI).parent}:{os.environ['PATH']}"
    variables = {**shop._variables, "PATH": path}
    done = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["schedules", "failed", "twice", ""]
    assert "#compdef kagzi" in shop.kagzi("completion", "zsh").out
    asked = {"_KAGZI_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert "schedules" in shop.kagzi(**asked, _TYPER_COMPLETE_ARGS="kagzi sched").out
    assert "complete --command kagzi" in shop.kagzi("completion", "fish").out


def test_every_command_is_run_somewhere_here() -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("test_*.py"))]
    run = {command_of(words) for text in texts for words in _invoked(text)}
    # These need more than a server, and have tests of their own.
    apart = {"demo", "bench"}
    assert surface.commands().keys() - run - apart == set()


def test_every_command_made_the_call_that_the_table_says(request: pytest.FixtureRequest) -> None:
    here = [item.name for item in request.session.items if item.path == Path(__file__)]
    if any(
        name not in " ".join(here) for name in re.findall(r"^def (test_\w+)", Path(__file__).read_text(), re.MULTILINE)
    ):
        pytest.skip("needs what the other tests of this file do")
    told = {
        call: entry["command"]
        for call, entry in surface.entries().items()
        if "command" in entry and "same_as" not in entry
    }
    assert {call: command for call, command in told.items() if call not in MADE[command]} == {}


def _invoked(text: str) -> Iterator[tuple[str, ...]]:
    """The first words of every command that a test runs as a process."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(attr="kagzi" | "until") | ast.Name(id="kagzi" | "spoken" | "serving")):
                yield tuple(
                    each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)
                )
            case ast.Tuple(elts=[ast.Constant(value=str()), *_]):
                yield tuple(
                    each.value for each in node.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)
                )
