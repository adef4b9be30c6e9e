"""One directory has one owner."""

import os
import subprocess
from pathlib import Path

import pytest

from kagzi.embedded import DirectoryInUse, Embedded
from tests.embedded.owner import owning


def test_a_directory_owned_by_another_process_is_refused_with_its_name_and_pid(data_directory: Path) -> None:
    with owning(data_directory) as owner:
        with pytest.raises(DirectoryInUse) as refused:
            Embedded(data_directory).start()
        assert refused.value.directory == data_directory
        assert refused.value.pid == owner.process.pid
        for hint in (str(data_directory), f"process {owner.process.pid}", "stop that process", "KAGZI_DB_URL"):
            assert hint in str(refused.value)


def test_a_second_owner_in_the_same_process_is_refused(postgres: Embedded) -> None:
    with pytest.raises(DirectoryInUse) as refused:
        Embedded(postgres.directory).start()
    assert refused.value.pid == os.getpid()
    assert postgres.running


def test_a_refused_owner_leaves_the_server_alone(postgres: Embedded) -> None:
    pid = postgres.pid
    for path in (postgres.directory, postgres.directory / ".." / postgres.directory.name):
        with pytest.raises(DirectoryInUse):
            Embedded(path).start()
    assert postgres.pid == pid


def test_a_stopped_server_gives_its_directory_free(postgres: Embedded) -> None:
    postgres.stop()
    with Embedded(postgres.directory) as other:
        with pytest.raises(DirectoryInUse):
            postgres.start()
        assert other.running


def test_a_server_that_someone_started_by_hand_is_not_disturbed(postgres: Embedded) -> None:
    cluster = postgres.directory / "cluster"
    account = cluster.stat()
    postgres.stop()
    descriptor = os.open(cluster, os.O_RDONLY)
    by_hand = subprocess.Popen(
        [postgres.binaries / "postgres", "-D", f"/proc/self/fd/{descriptor}", "-k", ".", "-h", ""],
        user=account.st_uid if os.geteuid() == 0 else None,
        pass_fds=(descriptor,),
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(descriptor)
    with by_hand:
        assert by_hand.stderr
        assert any("ready to accept connections" in line for line in by_hand.stderr)
        with pytest.raises(DirectoryInUse) as refused:
            postgres.start()
        assert refused.value.pid == by_hand.pid
        by_hand.terminate()
        by_hand.stderr.read()
