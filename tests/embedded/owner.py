"""Processes of the tests that own an embedded server, and a way to see a process end without polling."""

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Seconds a server may take to notice and to stop: a bound for hanging, not a measure of speed.
SOON = 30.0

_OWN = """
import os, signal, sys
from kagzi.embedded import Embedded
# Tests that a shell, or nohup, started in the background pass on which signals are ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
with Embedded(sys.argv[1]) as server:
    {first}
    print(server.pid, server.url, flush=True)
    sys.stdin.read()
"""


class Watched:
    """A process that is watched from before its end, so that its number cannot be taken for another's."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def ended(self, within: float = SOON) -> bool:
        """Wait for the end of the process, which is seen even if nobody has reaped it."""
        ready, _, _ = select.select([self._descriptor], [], [], within)
        return bool(ready)

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass(frozen=True, slots=True)
class Owner:
    """Another Python process, and what it started."""

    process: subprocess.Popen[str]
    postmaster: Watched
    launcher: Watched
    url: str

    def leave(self) -> None:
        """Let the process end by itself."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(SOON)


@contextlib.contextmanager
def owning(directory: Path, first: str = "") -> Iterator[Owner]:
    """Another process that owns a server there; afterwards both are gone."""
    command = [sys.executable, "-c", _OWN.format(first=first), str(directory)]
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(process.kill)
        assert process.stdout
        pid, url = process.stdout.readline().split()
        postmaster = stack.enter_context(contextlib.closing(Watched(int(pid))))
        launcher = stack.enter_context(contextlib.closing(Watched(parent_of(int(pid)))))
        yield Owner(process, postmaster, launcher, url)
        process.kill()
        assert postmaster.ended()
        assert launcher.ended()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
