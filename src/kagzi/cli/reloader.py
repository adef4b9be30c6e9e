"""Runs a command as a child, and anew whenever a file changes: the old child is asked to end and may take its time,
while the new one begins at once. Files are looked at once a second. Signals reach each child once for each that we
get.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import typer

_LOOK_SECS = 1.0


def supervise(command: Sequence[str], source: Path) -> int:
    """Until SIGTERM or SIGINT; answers the exit code of the last child."""
    return _Reloader(command, source).run()


class _Reloader:
    def __init__(self, command: Sequence[str], source: Path) -> None:
        self._command = command
        self._source = source
        self._children: list[subprocess.Popen[bytes]] = []
        self._signalled = threading.Event()
        # The newest child has ended by itself.
        self._ended = False

    def run(self) -> int:
        before = {number: signal.signal(number, self._pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._watch()
            # The last one is the newest: its end is ours.
            return max(0, [child.wait() for child in self._children][-1])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _watch(self) -> None:
        seen = _snapshot(self._source)
        self._start()
        while not self._signalled.wait(_LOOK_SECS):
            now = _snapshot(self._source)
            if now != seen:
                changed = sorted({path for path, _ in now ^ seen})
                typer.echo(f"{', '.join(path.name for path in changed[:3])} changed: starting anew.", err=True)
                seen = now
                _tell(self._children[-1], signal.SIGTERM)
                self._start()
            elif not self._ended and self._children[-1].poll() is not None:
                self._ended = True
                typer.echo("The worker has ended: waiting for a change.", err=True)
            self._children = [child for child in self._children[:-1] if child.poll() is None] + self._children[-1:]

    def _start(self) -> None:
        # In a session of its own, so that Ctrl-C reaches it through us alone: a second signal means "at once".
        self._children.append(subprocess.Popen(self._command, start_new_session=True))
        self._ended = False

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        self._signalled.set()
        for child in self._children:
            _tell(child, number)


def _tell(child: subprocess.Popen[bytes], number: int) -> None:
    if child.poll() is None:
        child.send_signal(number)


def _snapshot(source: Path) -> frozenset[tuple[Path, int]]:
    """The files of a package, or beside a file, and when each was changed."""
    paths = source.rglob("*.py") if source.is_dir() else source.parent.glob("*.py")
    found = set()
    for path in paths:
        try:
            found.add((path, path.stat().st_mtime_ns))
        except FileNotFoundError:
            # Between the listing and the look.
            continue
    return frozenset(found)
