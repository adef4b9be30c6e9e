"""The `console` blocks of the documents: what a test can run is run, here or where it is named. The rest is named with
the reason, and still held to what there is: targets, commands, options, files and packages that it speaks of.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import metadata
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks import __main__ as benchmarks
from kagzi.cli import app
from tests.deploy.test_kubernetes import SECRETS
from tests.docs.blocks import ROOT, blocks, documents
from tests.docs.terminal import Terminal, made

# Lines that a test runs as they stand, with its name.
RUN = {
    "make demo": "tests/cli/test_demo.py",
    "make dev": "tests/docs/test_consoles.py",
    "kagzi dev": "tests/docs/test_quickstart.py",
    'curl -H "Authorization: Bearer $KAGZI_API_KEY" https://kagzi.example/api/v1/runs': "tests/docs/test_security.py",
    "python examples/01_hello.py": "tests/examples/test_course.py",
}
# How the others begin, and why no test runs them.
NOT_RUN = {
    "make test": "it is what runs this test",
    "make bench": "it takes an hour",
    "kagzi bench": "it takes a minute; tests/cli/test_bench.py runs it with less to do",
    "python -m benchmarks": "it takes minutes; tests/benchmarks run its parts",
    "pip install": "it asks a package index",
    "docker": "it needs Docker; tests/image plays the Dockerfile, tests/deploy reads the compose file",
    "FROM": "it needs Docker; tests/image plays what follows it",
    "COPY": "it needs Docker; tests/image plays it",
    "CMD": "it needs Docker; tests/image runs it",
    "systemctl": "it needs a running systemd; below it is run for a folder, without --now",
    "kubectl create namespace": "it needs a cluster; the manifests have the namespace too",
    "kubectl -n kagzi create secret": "it needs a cluster; below it is run as far as kubectl goes without one",
    "kubectl apply": "it needs a cluster; tests/deploy renders the manifests and reads every word of them",
}


def lines() -> list[tuple[str, str]]:
    """Every line of the blocks, without what is said behind it, and where it stands."""
    found = chain.from_iterable(blocks(path, "console") for path in documents())
    each = [(block.name, line) for block in found for line in block.code.splitlines()]
    return [(name, re.sub(r"\s+# .*", "", line).strip()) for name, line in each]


LINES = {line: name for name, line in lines()}


def reason(line: str) -> str | None:
    return next((why for begins, why in NOT_RUN.items() if line.startswith(begins)), None)


def test_every_line_is_run_or_says_why_not() -> None:
    assert [(name, line) for line, name in LINES.items() if line not in RUN and reason(line) is None] == []
    assert RUN.keys() <= LINES.keys()
    assert [begins for begins in NOT_RUN if not any(line.startswith(begins) for line in LINES)] == []
    for file in RUN.values():
        assert (ROOT / file).is_file()


def _makes(words: list[str], folder: Path) -> None:
    subprocess.run(["make", "-n", "-C", str(ROOT), *words[1:]], capture_output=True, timeout=60, check=True)


def _is_a_command(words: list[str], folder: Path) -> None:
    """Walks to the command and has it read its options, without doing anything."""
    command: Any = typer.main.get_command(app)
    left = words[1:]
    while getattr(command, "commands", None):
        command = command.commands[left.pop(0)]
    command.make_context("kagzi", left)


def _is_measured(words: list[str], folder: Path) -> None:
    (folder / "kept.json").write_text(json.dumps({}), encoding="utf-8")
    here = [str(folder / word) if word.endswith(".json") else word for word in words[3:]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["benchmarks", *here])
        benchmarks._options()


def _is_packaged(words: list[str], folder: Path) -> None:
    name, _, extra = words[2].rstrip("]").partition("[")
    assert extra in (metadata(name).get_all("Provides-Extra") or [])


def _names_files(words: list[str], folder: Path) -> None:
    """What follows -f and -k is there."""
    named = [after for option, after in pairwise(words) if option in ("-f", "-k")]
    assert all((ROOT / name).exists() for name in named)


def _is_served(words: list[str], folder: Path) -> None:
    _is_a_command(["kagzi", *json.loads(" ".join(words[1:]).replace("'", '"'))], folder)


def _enables(words: list[str], folder: Path) -> None:
    """Enables the unit in a folder that holds our units; only that nothing is started is otherwise."""
    unit = re.sub(r"@.*\.", "@.", words[-1])
    assert (ROOT / "deploy" / "systemd" / unit).is_file()
    if shutil.which("systemctl") is None:
        pytest.skip("systemd is not here")
    units = folder / "etc" / "systemd" / "system"
    shutil.copytree(ROOT / "deploy" / "systemd", units)
    asked = [word for word in words if word != "--now"]
    subprocess.run([*asked, f"--root={folder}"], capture_output=True, timeout=60, check=True)
    assert (units / "multi-user.target.wants" / words[-1]).readlink().name == unit


def _makes_a_secret(words: list[str], folder: Path) -> None:
    """The manifests ask for every secret that is made, by its name, and for what is in it."""
    _names_files(words, folder)
    if "secret" not in words:
        return
    name = words[words.index("generic") + 1]
    assert name in SECRETS
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not here")
    for file in (word.removeprefix("--from-file=") for word in words if word.startswith("--from-file=")):
        (folder / file).write_text("PEM", encoding="utf-8")
    done = subprocess.run(
        [*words, "--dry-run=client", "--output=json"], cwd=folder, capture_output=True, timeout=60, check=True
    )
    told = json.loads(done.stdout)
    assert (told["kind"], told["metadata"]["name"], told["metadata"]["namespace"]) == ("Secret", name, "kagzi")
    assert set(told["data"]) == SECRETS[name]


HELD: dict[str, Callable[[list[str], Path], None]] = {
    "make": _makes,
    "kagzi": _is_a_command,
    "python": _is_measured,
    "pip": _is_packaged,
    "docker": _names_files,
    "CMD": _is_served,
    "systemctl": _enables,
    "kubectl": _makes_a_secret,
}


@pytest.mark.parametrize("line", [line for line in LINES if line not in RUN])
def test_what_is_not_run_speaks_of_what_there_is(line: str, tmp_path: Path) -> None:
    words = shlex.split(line) if not line.startswith("CMD") else line.split()
    if words[0] in HELD:
        HELD[words[0]](words, tmp_path)
    else:
        assert reason(line)


def test_as_many_secrets_are_made_as_the_manifests_speak_of() -> None:
    text = (ROOT / "deploy" / "kubernetes" / "kustomization.yaml").read_text(encoding="utf-8")
    made = [line for line in LINES if line.startswith("kubectl") and " create secret " in line]
    assert f"{ {3: 'Three', 4: 'Four', 5: 'Five'}[len(made)] } secrets" in text


def test_make_dev_serves(database_url: str, tmp_path: Path) -> None:
    assert "make dev" in LINES
    terminal = Terminal(tmp_path, KAGZI_DB_URL=database_url, KAGZI_SERVER_PORT="0", KAGZI_HTTP_PORT="0")
    with terminal.running(made("make dev"), "dashboard: ") as said:
        assert "listens on 127.0.0.1:" in said
