"""A running server: the launcher, which is our child, and the postmaster below it.

It counts as running until the last backend is gone, so whoever waited for its end may touch the files.
"""

import contextlib
import os
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Self

from kagzi.embedded import launcher
from kagzi.embedded.account import Account
from kagzi.embedded.cluster import environment

_LOG_LIMIT = 16 * 2**20
_LINES_SHOWN = 30


class Order(Enum):
    """How to end; the letters are those the launcher reads."""

    FAST = b"f"
    IMMEDIATE = b"i"
    KILL = b"k"


class Process:
    """One life of a server, from its start to the end of its last backend."""

    def __init__(self, child: subprocess.Popen[bytes], control: int, log: Path, log_start: int) -> None:
        self.pid = 0
        self._child = child
        self._control: int | None = control
        self._log = log
        self._log_start = log_start

    @classmethod
    def spawn(
        cls, command: list[str], *, account: Account, scratch: Path, inherited: tuple[int, ...], log: Path
    ) -> Self:
        """Start the command as the account, with the descriptors it inherits; its output goes to the log."""
        if log.exists() and log.stat().st_size > _LOG_LIMIT:
            log.replace(log.with_name(f"{log.name}.old"))
        uid, gid = (account.uid, account.gid) if account.switched else (-1, -1)
        told = map(str, (os.getpid(), uid, gid, scratch))
        read_control, control = os.pipe()
        read_report, report = os.pipe()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            log_start = os.lseek(output, 0, os.SEEK_END)
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", launcher.__file__, *told, *command],
                stdin=read_control,
                stdout=report,
                stderr=output,
                cwd="/",
                env=environment(),
                pass_fds=inherited,
                # A Ctrl-C in the terminal is for us; the server follows when we are done with it.
                start_new_session=True,
            )
        except BaseException:
            os.close(control)
            os.close(read_report)
            raise
        finally:
            for descriptor in (read_control, report, output):
                os.close(descriptor)
        started = cls(child, control, log, log_start)
        with open(read_report, "rb") as line:  # noqa: PTH123  (a descriptor has no path)
            started.pid = int(line.readline() or 0)
        return started

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    def end(self, order: Order) -> None:
        """Give the order and wait until every process of the server is gone. An ended server stays ended."""
        if self._control is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._control, order.value)
            self._child.wait()
            os.close(self._control)
            self._control = None

    def log_tail(self) -> str:
        """The last lines that this life of the server wrote."""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return "\n".join(log.read().decode(errors="replace").splitlines()[-_LINES_SHOWN:])
