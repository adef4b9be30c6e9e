"""The steps of the Dockerfile, played by a shell in a clean folder, and what comes out of them: a server that works,
without anything of the project's own environment. What this cannot show is the image that they begin with.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from tests.deploy.manifests import Stage, compose, copied, dockerfile
from tests.docs.blocks import blocks
from tests.house.tree import ROOT

pytestmark = pytest.mark.timeout(600)


class Played:
    """A folder in which the build was played. `prefix` is where the Dockerfile's /opt/kagzi is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.prefix = root / "opt" / "kagzi"
        self.folder = root
        clean = {"PATH": os.environ["PATH"], "HOME": str(root), "LANG": "C.UTF-8"}
        network = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        # ARG gives way to the environment, as with --build-arg.
        pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        self.environment = {**clean, **network, **pip, "PREFIX": str(self.prefix)}

    def play(self, stage: Stage) -> None:
        acts = {"WORKDIR": self.enter, "COPY": self._copy, "RUN": self._run, "ARG": self._arg}
        for word, rest in stage.steps:
            acts[word](rest)

    def _arg(self, rest: str) -> None:
        name, _, value = rest.partition("=")
        self.environment.setdefault(name, value)

    def enter(self, rest: str) -> None:
        """What WORKDIR does."""
        self.folder = self.root / rest.removeprefix("/")
        self.folder.mkdir(parents=True)

    def _copy(self, rest: str) -> None:
        sources, target = copied(rest)
        for source in sources:
            into = self.folder / target / (source if target.endswith("/") else "")
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, into, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, into)

    def _run(self, rest: str) -> None:
        # The Dockerfile's `python` is the one that plays it.
        python = f'python() {{ {shlex.quote(sys.executable)} "$@"; }}\n'
        subprocess.run(["sh", "-euc", python + rest], cwd=self.folder, env=self.environment, check=True, timeout=500)

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        """What ENTRYPOINT does with these words."""
        environment = {**self.environment, "PATH": f"{self.prefix}/bin:/usr/bin:/bin", **more}
        [program] = dockerfile()[-1].last("ENTRYPOINT")
        return subprocess.Popen(
            [str(self.prefix / "bin" / program), *words],
            env=environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def said(self, *words: str, **more: Any) -> tuple[int, str]:
        """How a command ends, and what it says."""
        process = self.start(*words, **more)
        output, _ = process.communicate(timeout=120)
        return process.returncode, output


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    made = Played(tmp_path_factory.mktemp("image"))
    build, image = dockerfile()
    made.play(build)
    for step in image.values("WORKDIR"):
        made.enter(step)
    return made


def heard(process: subprocess.Popen[str], words: str) -> str:
    """The line with these words."""
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return line
    raise AssertionError(f"it ended with {process.wait()} and never said {words!r}")


def greeted(site: str) -> None:
    """A run of the first example comes to where it sleeps."""
    started = httpx.post(f"{site}/api/v1/runs", json={"workflow_type": "hello", "input": "Ada"}, timeout=30).json()
    until = time.monotonic() + 60
    while httpx.get(f"{site}/api/v1/runs/{started['run_id']}").json()["run"]["status"] != "SLEEPING":
        assert time.monotonic() < until
        time.sleep(0.05)


def ended(*processes: subprocess.Popen[str]) -> None:
    """Each ends well when it is asked to."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_what_is_installed_is_what_is_pinned(played: Played) -> None:
    done = subprocess.run(
        [played.prefix / "bin" / "python", "-m", "pip", "freeze", "--exclude", "kagzi", "--exclude", "pip"],
        capture_output=True,
        text=True,
        check=True,
    )
    pinned = set((ROOT / "constraints.txt").read_text(encoding="utf-8").lower().splitlines())
    assert [line for line in done.stdout.lower().splitlines() if line not in pinned] == []


def test_without_a_database_it_says_what_is_missing(played: Played) -> None:
    code, said = played.said("server")
    assert code != 0
    assert "KAGZI_DB_URL" in said
    assert "Traceback" not in said


async def _empty(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute("drop schema kagzi cascade")
    await connection.close()


def test_a_server_and_a_worker_of_the_image_do_a_run(played: Played, database_url: str) -> None:
    asyncio.run(_empty(database_url))
    database = {"KAGZI_DB_URL": database_url}
    code, said = played.said("server", **database)
    assert (code != 0, "kagzi migrate" in said) == (True, True)
    assert played.said("migrate", **database)[0] == 0
    server = played.start("server", **database, KAGZI_SERVER_PORT="0", KAGZI_HTTP_PORT="0")
    grpc = heard(server, "Kagzi listens on").split()[-1]
    site = heard(server, "dashboard:").split()[-1]
    assert httpx.get(f"{site}/readyz", timeout=30).status_code == 200
    [command, module] = compose()["worker"]["command"]
    example = str(ROOT / module.removeprefix("/"))
    worker = played.start(command, example, KAGZI_URL=grpc)
    heard(worker, "Runs hello")
    greeted(site)
    ended(worker, server)


def test_a_worker_of_an_image_made_from_it_runs_what_was_copied(played: Played, database_url: str) -> None:
    """The lines of docs/deploy.md, behind the FROM, played in the image's own folder."""
    [block] = [each for each in blocks(ROOT / "docs" / "deploy.md", "console") if each.code.startswith("FROM kagzi")]
    _, copy, command = block.code.splitlines()
    [source], target = copied(copy.removeprefix("COPY "))
    [app] = dockerfile()[-1].values("WORKDIR")
    assert (target, command.partition(" ")[0]) == (f"{app}/{source}", "CMD")
    module = played.root / target.removeprefix("/") / "orders.py"
    module.parent.mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "01_hello.py", module)
    server = played.start("server", KAGZI_DB_URL=database_url, KAGZI_SERVER_PORT="0", KAGZI_HTTP_PORT="0")
    grpc = heard(server, "Kagzi listens on").split()[-1]
    site = heard(server, "dashboard:").split()[-1]
    worker = played.start(*json.loads(command.removeprefix("CMD ")), KAGZI_URL=grpc)
    greeted(site)
    ended(worker, server)


def test_beyond_loopback_it_wants_tls_and_keys(played: Played, database_url: str) -> None:
    code, said = played.said("server", KAGZI_DB_URL=database_url, KAGZI_SERVER_HOST="192.0.2.1")
    assert code != 0
    assert "KAGZI_SERVER_HOST" in said
