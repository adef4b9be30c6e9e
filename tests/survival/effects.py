"""The effects log: what step bodies did, written outside the engine and synced to disk before a body goes on. A line is
one append, so that workers share the file; a worker that is killed leaves whole lines. It believes nothing of what the
engine says: the checker compares the two.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from kagzi.sdk.current import current_step

# Set for the workers of a test: the file, and the name of the process.
FILE = "SURVIVAL_EFFECTS"
WORKER = "SURVIVAL_WORKER"


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that a body did. `at` is the machine's monotonic clock, the same for all processes."""

    at: int
    what: str
    worker: str
    run: str
    step: str
    attempt: str
    value: str = ""


def note(what: str, value: str = "") -> None:
    """Called in the body of a step. "begin" comes first; "effect" is what must not happen twice in vain."""
    current = current_step.get()
    assert current is not None, "only a step has effects"
    worker = os.environ.get(WORKER, "")
    entry = Entry(time.monotonic_ns(), what, worker, current.run_id, current.step_id, current.attempt_id, value)
    file = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, json.dumps(asdict(entry)).encode() + b"\n")
        os.fsync(file)
    finally:
        os.close(file)


def read(path: Path) -> list[Entry]:
    """All entries so far, oldest first."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return sorted((Entry(**json.loads(line)) for line in lines), key=lambda entry: entry.at)
