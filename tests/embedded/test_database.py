"""Starting, stopping and reusing an embedded server."""

import asyncio
import pwd
import subprocess
import threading
from pathlib import Path

import asyncpg
import pytest

from kagzi.embedded import Embedded, EmbeddedError, StartFailed
from kagzi.embedded.binaries import Version


async def fetch(url: str, query: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


@pytest.mark.parametrize("version", [16, 18])
async def test_an_empty_directory_becomes_a_server_of_the_version_asked_for(place: Path, version: Version) -> None:
    async with Embedded(place / "data", version=version) as server:
        assert await fetch(server.url, "SELECT current_setting('server_version_num')::int / 10000") == version
        assert await fetch(server.url, "SELECT current_database()::text") == "kagzi"
        assert await fetch(server.url, "SHOW server_encoding") == "UTF8"
        assert await fetch(server.url, "SELECT 'Z' < 'a' COLLATE \"default\"")


async def test_a_second_start_finds_what_the_first_one_stored(data_directory: Path) -> None:
    with Embedded(data_directory) as server:
        await fetch(server.url, "CREATE TABLE kept AS SELECT 42 AS number")
    with Embedded(data_directory) as server:
        assert await fetch(server.url, "SELECT number FROM kept") == 42


async def test_a_restart_keeps_the_url(postgres: Embedded) -> None:
    url, pid = postgres.url, postgres.pid
    postgres.restart()
    assert postgres.url == url
    assert postgres.pid != pid
    assert await fetch(url, "SELECT 1") == 1


async def test_nothing_of_the_server_is_left_after_the_block(data_directory: Path) -> None:
    server = Embedded(data_directory)
    async with server:
        pid, socket_directory = server.pid, Path(server.url.partition("host=")[2])
        assert socket_directory.stat().st_mode & 0o777 == 0o700
    assert not server.running
    assert not Path(f"/proc/{pid}").exists()
    assert not socket_directory.exists()
    with pytest.raises(EmbeddedError, match=r"call start\(\) first"):
        _ = server.url


def test_stopping_and_starting_twice_is_harmless(postgres: Embedded) -> None:
    pid = postgres.pid
    postgres.start()
    assert postgres.pid == pid
    postgres.stop()
    postgres.stop()
    postgres.crash()
    with pytest.raises(EmbeddedError, match="not running"):
        _ = postgres.pid
    postgres.start()


def test_the_server_outlives_the_thread_that_started_it(data_directory: Path) -> None:
    server = Embedded(data_directory)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    try:
        assert server.running
        assert asyncio.run(fetch(server.url, "SELECT 1")) == 1
    finally:
        server.close()


async def test_a_cancelled_start_leaves_no_server(place: Path) -> None:
    server = Embedded(place)
    entering = asyncio.create_task(server.__aenter__())
    await asyncio.sleep(0)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert not server.running


async def test_commits_are_durable(postgres: Embedded) -> None:
    for setting in ("fsync", "synchronous_commit", "full_page_writes", "data_checksums"):
        assert await fetch(postgres.url, f"SHOW {setting}") == "on"


async def test_settings_of_the_caller_win(data_directory: Path) -> None:
    wanted: dict[str, str | int | bool] = {
        "max_connections": 12,
        "jit": True,
        "application_name": "it's mine",
    }
    async with Embedded(data_directory, settings=wanted) as server:
        assert await fetch(server.url, "SHOW max_connections") == "12"
        assert await fetch(server.url, "SHOW jit") == "on"
        assert await fetch(server.url, "SHOW application_name") == "it's mine"


def test_a_failed_start_shows_the_end_of_the_log(data_directory: Path) -> None:
    server = Embedded(data_directory, settings={"shared_buffers": "plenty"})
    with pytest.raises(StartFailed, match='invalid value for parameter "shared_buffers": "plenty"') as failed:
        server.start()
    assert str(data_directory) in str(failed.value)
    assert "shared_buffers" in failed.value.log
    assert not server.running


def test_a_directory_of_another_version_is_refused(place: Path) -> None:
    with Embedded(place, version=16):
        pass
    with pytest.raises(EmbeddedError, match=r"made by PostgreSQL 16 .* ask for version 16"):
        Embedded(place, version=18).start()


def test_a_path_that_is_no_directory_is_refused(place: Path) -> None:
    place.joinpath("file").touch()
    with pytest.raises(EmbeddedError, match="cannot use the database directory"):
        Embedded(place / "file" / "data").start()


def test_the_programs_of_the_server_are_at_hand(postgres: Embedded, place: Path) -> None:
    shown = subprocess.check_output([postgres.binaries / "psql", postgres.url, "-Atc", "SELECT 6 * 7"], text=True)
    assert shown == "42\n"
    copy = place / "copy"
    subprocess.run([postgres.binaries / "pg_basebackup", "-d", postgres.url, "-D", copy, "-c", "fast"], check=True)
    assert copy.joinpath("PG_VERSION").read_text() == "18\n"


def test_the_log_is_in_the_data_directory(postgres: Embedded) -> None:
    assert postgres.log.parent == postgres.directory
    assert "ready to accept connections" in postgres.log.read_text()


def test_variables_meant_for_other_servers_change_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        for name, value in {"PGDATA": "/nowhere", "PGPORT": "1", "PGCLIENTENCODING": "LATIN1", "LC_ALL": "tlh"}.items():
            patch.setenv(name, value)
        server = Embedded(place)
        server.start()
    shown = subprocess.check_output([server.binaries / "psql", server.url, "-Atc", "SHOW client_encoding"], text=True)
    server.close()
    assert shown == "UTF8\n"


def test_the_server_never_runs_as_root(postgres: Embedded) -> None:
    assert Path(f"/proc/{postgres.pid}").stat().st_uid != 0
    assert postgres.directory.joinpath("cluster").stat().st_uid == Path(f"/proc/{postgres.pid}").stat().st_uid
    assert pwd.getpwuid(Path(f"/proc/{postgres.pid}").stat().st_uid)
