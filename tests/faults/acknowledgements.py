"""The acknowledgement log: what clients were told, written and synced to disk by the client's own process before its
next call. A line is one append, so that clients share nothing but the disk, and one that is killed leaves whole lines.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.survival.checker import Told


@dataclass(frozen=True, slots=True)
class Line:
    """`what` is "wish" (about to be asked for), "start", "trigger" (of a schedule), "signal", "status" (of a run that
    was asked to end), "publish", "result" (there is nothing more to ask for), or "surfaced" (an error came through).
    """

    at: int
    client: str
    what: str
    name: str
    run_id: str = ""
    signal_id: str = ""
    result: Any = None


class Log:
    """What one client writes."""

    def __init__(self, path: Path, client: str) -> None:
        self._client = client
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, what: str, name: str, run_id: str = "", signal_id: str = "", result: Any = None) -> None:
        line = Line(time.monotonic_ns(), self._client, what, name, run_id, signal_id, result)
        os.write(self._file, json.dumps(asdict(line)).encode() + b"\n")
        os.fsync(self._file)


def stop(log: Path) -> Path:
    """The file that tells the client with this log to begin nothing more."""
    return log.with_suffix(".stop")


def read(paths: Iterable[Path]) -> list[Line]:
    """Everything that was acknowledged so far, oldest first."""
    lines = [line for path in paths if path.exists() for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted((Line(**json.loads(line)) for line in lines), key=lambda line: line.at)


def told(lines: Iterable[Line]) -> list[Told]:
    """What was acknowledged of each run, for the checker."""
    by_name: dict[str, Told] = {}
    for line in lines:
        if line.what == "trigger":
            by_name.setdefault(line.name, Told(line.run_id, ""))
        elif line.what == "start":
            # Whoever starts again by the same name, after a crash, was told of a run once more: of the same one.
            first = by_name.setdefault(line.name, Told(line.run_id, line.name))
            if first.run_id != line.run_id:
                by_name[f"{line.name} again"] = Told(line.run_id, line.name)
        elif line.what == "status":
            by_name[line.name].statuses.append(line.result)
        elif line.what == "signal" and line.signal_id not in by_name[line.name].signals:
            by_name[line.name].signals.append(line.signal_id)
        elif line.what == "result" and line.run_id:
            by_name[line.name].result = line.result
    return list(by_name.values())


def published(lines: Iterable[Line]) -> list[tuple[str, str]]:
    """The events that were acknowledged: automation and id."""
    return [(line.result, line.name) for line in lines if line.what == "publish"]


def unfinished(lines: Iterable[Line]) -> list[str]:
    """Names that a client set out for and has no result of."""
    names: dict[str, None] = {}
    for line in lines:
        if line.what == "wish":
            names[line.name] = None
        elif line.what == "result":
            names.pop(line.name, None)
    return list(names)
