"""Who types a command wrongly is told in one line on stderr what is wrong and where to look, and the code is 2."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from kagzi import cli
from kagzi.cli import problems, usage
from tests.cli.test_cli import kagzi


def every(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with the words that lead to it."""
    for name, found in getattr(command, "commands", {}).items():
        yield from every(found, *path, name)
    if path and not hasattr(command, "commands"):
        yield path, command


ROOT = typer.main.get_command(cli.app)
COMMANDS = list(every(ROOT))


class Typed:
    """What a command line of this process leads to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["kagzi", *words])
        with pytest.raises(SystemExit) as ended:
            usage.run(ROOT, "kagzi")
        out, err = self._capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return code, out, err


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    monkeypatch.setenv("NO_COLOR", "1")
    return Typed(monkeypatch, capsys)


def refused(answer: tuple[int, str, str]) -> str:
    """The one line."""
    code, out, err = answer
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err.strip()


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_every_command_says_in_a_line_what_was_typed_wrongly(typed: Typed, path: tuple[str, ...], command: Any) -> None:
    whole = " ".join(("kagzi", *path))
    needed = [each for each in command.params if each.param_type_name == "argument" and each.required]
    given = ["1"] * len(needed)
    line = refused(typed(*path, *given, "--no-such-option"))
    assert "no such option: --no-such-option" in line
    assert f"`{whole} -h` tells more" in line
    line = refused(typed(*path, *given, "too", "many"))
    # What is wrong besides may be said first.
    assert any(said in line for said in ("extra argument", "missing option", "invalid value"))
    if needed:
        line = refused(typed(*path))
        assert "missing argument" in line
        assert f"write `{whole} " in line
    for option in command.params:
        if option.param_type_name == "option" and not option.is_flag:
            assert f"'{option.opts[0]}' requires an argument" in refused(typed(*path, *given, option.opts[0]))
            break


def test_a_command_that_is_nearly_right_is_named(typed: Typed) -> None:
    assert "Did you mean 'list'?" in refused(typed("runs", "lst"))
    assert "Did you mean 'schedules'?" in refused(typed("schedule", "list"))
    assert refused(typed("frobnicate")) == "error: no such command 'frobnicate'; `kagzi -h` tells more"
    assert "--limit" in refused(typed("runs", "list", "--limt", "5"))


def test_a_value_that_does_not_fit_is_named_with_its_option(typed: Typed) -> None:
    assert "'--limit'" in refused(typed("runs", "list", "--limit", "many"))
    assert "'--limit'" in refused(typed("runs", "list", "--limit", "0"))
    assert "'--priority'" in refused(typed("start", "order", "--priority", "high"))


def test_a_group_that_is_typed_alone_shows_what_there_is(typed: Typed) -> None:
    for words in ((), ("runs",), ("keys",)):
        code, out, err = typed(*words)
        assert code == 2
        assert "Usage" in out + err
        assert "Commands" in out + err or "Try it" in out + err


def test_the_reference_names_every_exit_code_and_no_other() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference.md").read_text(encoding="utf-8")
    [table] = re.findall(r"\| exit code \| means \|\n.*?\n\n", text, re.DOTALL)
    told = {int(code): meaning for code, meaning in re.findall(r"^\| (\d) \| (.*) \|$", table, re.MULTILINE)}
    assert told.keys() == {0, problems.FAILED, problems.USAGE, problems.UNANSWERED}
    assert told[problems.FAILED].startswith("the server said no")
    assert told[problems.USAGE].startswith("wrong usage or settings")
    assert told[problems.UNANSWERED].startswith("no server answered")


def test_help_is_no_mistake(typed: Typed) -> None:
    for words in ((), ("runs",), ("runs", "show")):
        assert typed(*words, "-h")[0] == 0


def test_a_process_says_it_in_a_line_too(tmp_path: Path) -> None:
    answer = kagzi("runs", "show", cwd=tmp_path)
    assert refused((answer.returncode, answer.stdout, answer.stderr)).startswith("error: missing argument")
