"""One owner for one data directory.

The lock is an flock on the file `owner`, whose text names the process that took it. PostgreSQL and all its
backends inherit the descriptor and the owner then closes it, so the lock lasts exactly as long as anything
may still write to the directory: not shorter when the owner is killed, not longer when its forked children
live on.
"""

import fcntl
import os
import time
from pathlib import Path

from kagzi.embedded.errors import DirectoryInUse, EmbeddedError

# How long a server may take to end after its owner, and an owner that was just killed to be dead.
_PATIENCE = 30.0
_DOUBT = 0.5


def take(directory: Path) -> int:
    """A locked descriptor of `owner`. A server whose owner has died is about to end and is waited for."""
    path = directory / "owner"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except PermissionError as error:
        raise EmbeddedError(
            f"{path} cannot be written by this user: run as the user who owns {directory}, "
            "or choose another directory (KAGZI_DATA_DIR)"
        ) from error
    try:
        _lock(descriptor, directory)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int, directory: Path) -> None:
    began = time.monotonic()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            text = os.pread(descriptor, 32, 0).strip()
            pid = int(text) if text.isdigit() else None
            if time.monotonic() - began > (_DOUBT if pid and alive(pid) else _PATIENCE):
                raise DirectoryInUse(directory, pid) from None
            time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process exists and still runs; one that waits to be reaped does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state not in ("Z", "X")
