"""What survives when the server, or what is around it, is killed."""

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path

import asyncpg
import pytest

from kagzi.embedded import Embedded
from tests.embedded.owner import SOON, Watched, owning, parent_of


async def _write_until_cut(url: str, acknowledged: list[int], under_way: asyncio.Event) -> None:
    connection = await asyncpg.connect(url)
    enough = len(acknowledged) + 50
    with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
        while True:
            number = (acknowledged[-1] if acknowledged else 0) + 1
            await connection.execute("INSERT INTO written VALUES ($1)", number)
            acknowledged.append(number)
            if number == enough:
                under_way.set()
    connection.terminate()


async def _written(url: str) -> list[int]:
    connection = await asyncpg.connect(url)
    rows = await connection.fetch("SELECT number FROM written ORDER BY number")
    await connection.close()
    return [row["number"] for row in rows]


@pytest.mark.parametrize("how", ["stop", "crash"])
async def test_what_was_acknowledged_is_there_after_an_immediate_stop(postgres: Embedded, how: str) -> None:
    url = postgres.url
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE written (number int PRIMARY KEY)")
    await connection.close()
    acknowledged: list[int] = []
    for _ in range(3):
        under_way = asyncio.Event()
        writing = asyncio.create_task(_write_until_cut(url, acknowledged, under_way))
        await under_way.wait()
        await asyncio.to_thread(postgres.crash if how == "crash" else lambda: postgres.stop(immediate=True))
        await writing
        await asyncio.to_thread(postgres.start)
        assert postgres.url == url
        stored = await _written(url)
        # The one insert in flight may have been committed without the answer having arrived.
        assert stored[: len(acknowledged)] == acknowledged
        assert len(stored) <= len(acknowledged) + 1
        acknowledged[:] = stored


async def test_a_crash_is_over_only_when_no_backend_is_left(postgres: Embedded) -> None:
    computing = await asyncpg.connect(postgres.url)
    backend = Watched(computing.get_server_pid())
    # A backend that computes does not notice the death of the postmaster by itself.
    endless = asyncio.create_task(computing.execute("DO 'BEGIN LOOP END LOOP; END'"))
    await asyncio.sleep(0)
    await asyncio.to_thread(postgres.crash)
    assert backend.ended(within=0)
    backend.close()
    with pytest.raises((asyncpg.PostgresError, OSError)):
        await endless
    computing.terminate()


async def test_a_server_killed_by_someone_else_starts_again_on_the_same_url(postgres: Embedded) -> None:
    launcher = Watched(parent_of(postgres.pid))
    os.kill(postgres.pid, signal.SIGKILL)
    assert launcher.ended()
    launcher.close()
    assert not postgres.running
    postgres.start()
    connection = await asyncpg.connect(postgres.url)
    await connection.close()


def test_a_killed_owner_takes_its_server_along(data_directory: Path) -> None:
    with owning(data_directory) as owner:
        owner.process.kill()
        assert owner.postmaster.ended()
        assert owner.launcher.ended()
        assert not Path(owner.url.partition("host=")[2]).exists()
    with Embedded(data_directory) as server:
        assert server.running


def test_forked_children_of_a_killed_owner_do_not_keep_the_server_alive(data_directory: Path) -> None:
    fork = "if os.fork() == 0: os.read(0, 1); os._exit(0)"
    with owning(data_directory, first=fork) as owner:
        owner.process.kill()
        assert owner.launcher.ended()
        with Embedded(data_directory) as server:
            assert server.running


def test_a_killed_launcher_takes_the_server_along(data_directory: Path) -> None:
    with owning(data_directory) as owner:
        os.kill(owner.launcher.pid, signal.SIGKILL)
        assert owner.postmaster.ended()
        owner.leave()


def test_the_successor_waits_for_the_server_of_a_killed_owner_to_end(data_directory: Path) -> None:
    with owning(data_directory) as owner:
        owner.process.kill()
        with Embedded(data_directory) as server:
            assert owner.postmaster.ended(within=0)
            assert server.running


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_owner_ended_by_a_signal_takes_its_server_along(
    data_directory: Path, signum: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    with owning(data_directory) as owner:
        owner.process.send_signal(signum)
        owner.process.wait(SOON)
        assert owner.launcher.ended()


def test_a_pid_file_whose_number_a_stranger_has_now_does_not_stop_the_start(postgres: Embedded) -> None:
    account = postgres.directory.joinpath("cluster").stat()
    pid_file = postgres.directory / "cluster" / "postmaster.pid"
    left = pid_file.read_text().partition("\n")[2]
    postgres.crash()
    # PostgreSQL takes any living process of its own user for a rival.
    user = account.st_uid if os.geteuid() == 0 else None
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, user=user, cwd="/") as stranger:
        pid_file.write_text(f"{stranger.pid}\n{left}")
        postgres.start()
        assert postgres.running
        stranger.kill()


def test_what_an_interrupted_creation_left_is_made_anew(place: Path) -> None:
    unfinished = place / "cluster.new"
    unfinished.mkdir()
    unfinished.joinpath("PG_VERSION").write_text("18\n")
    with Embedded(place) as server:
        assert server.running
    assert not unfinished.exists()
