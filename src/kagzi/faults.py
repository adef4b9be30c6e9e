"""Fault points: named places where a test can make a server or a worker crash, stand still or meet an error. They are
off unless KAGZI_FAULTS names some when the process starts, and then cost one look at a constant. They are for tests of
what survives, change nothing by themselves, and never decide anything.

`KAGZI_FAULTS="transaction.committed=crash@3; transaction.commit=error:40P01%5"` kills the process when it has committed
for the third time, and lets 5 in 100 transactions meet a deadlock. `KAGZI_FAULTS_SEED` makes the choice repeatable.
"""

from __future__ import annotations

import importlib
import os
import random
import re
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

VARIABLE = "KAGZI_FAULTS"
SEED = "KAGZI_FAULTS_SEED"

# Where a fault can be, and what is true there.
POINTS = {
    "transaction.commit": "nothing of a transaction is committed yet",
    "transaction.committed": "it is durable and nobody knows",
    "batcher.answer": "operations are durable and their callers were not told",
    "dispatcher.deliver": "runs are claimed and their workers do not have them",
    "stream.frame": "a worker's frame has arrived and was not read",
    "notifier.send": "a notice is about to be sent",
    "firing.fired": "slots are fired and nobody was woken",
    "worker.begin": "a step's body is about to begin",
    "worker.ended": "a step's body has ended and nobody knows",
    "worker.frame": "a worker's frame is about to leave",
}
_SPEC = re.compile(
    r"(?P<point>[\w.]+)=(?P<action>crash|stall|error)(:(?P<value>\w[\w.]*))?(@(?P<at>\d+)|%(?P<per>\d+))?"
)


class UnknownFault(ValueError):
    """KAGZI_FAULTS names no fault point, or no fault; the message says what can be named."""


@dataclass(slots=True)
class Fault:
    """What happens at a point: at its n-th visit, in so many of a hundred, or each time."""

    point: str
    action: str
    value: str = ""
    at: int | None = None
    per: int | None = None
    visits: int = 0

    def due(self, chance: random.Random) -> bool:
        self.visits += 1
        if self.at is not None:
            return self.visits == self.at
        return self.per is None or chance.uniform(0, 100) < self.per

    def happen(self) -> None:
        sys.stderr.write(f"fault point {self.point}: {self.action} {self.value}\n")
        sys.stderr.flush()
        if self.action == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.action == "stall":
            # The whole process stands still, as one does that is swapped out.
            time.sleep(float(self.value))
        else:
            raise _error(self.value)


def read(text: str) -> list[Fault]:
    """The faults that a text names."""
    faults = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        found = _SPEC.fullmatch(part)
        if found is None or found["point"] not in POINTS:
            raise UnknownFault(
                f"{VARIABLE} names {part!r}, which is no fault: write POINT=crash, POINT=stall:SECONDS or "
                f"POINT=error:SQLSTATE, then @N for the N-th visit or %N for N in a hundred; the points are "
                f"{', '.join(POINTS)}"
            )
        at, per = found["at"], found["per"]
        faults.append(
            Fault(
                found["point"],
                found["action"],
                found["value"] or "",
                None if at is None else int(at),
                None if per is None else int(per),
            )
        )
    return faults


def _error(code: str) -> Exception:
    """The error that the database's driver raises for a SQLSTATE."""
    driver: Any = importlib.import_module("asyncpg.exceptions")
    kind = next((one for one in vars(driver).values() if getattr(one, "sqlstate", None) == code), driver.PostgresError)
    error: Exception = kind(f"a fault point raised {code}")
    return error


_faults = read(os.environ.get(VARIABLE, ""))
_chance = random.Random(int(os.environ.get(SEED) or 0))
# A caller asks this first, so that a point that is off costs nothing.
ON = bool(_faults)


def reach(point: str) -> None:
    """The process is at this point now."""
    for fault in _faults:
        if fault.point == point and fault.due(_chance):
            fault.happen()
