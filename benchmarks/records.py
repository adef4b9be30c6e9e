"""What was measured: one record for every repetition of a workload by a system. Records are kept as JSON, and those of
several sittings can be put together, so that a long comparison can be made in pieces.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.span import Figures

OURS = "kagzi"


@dataclass(frozen=True, slots=True)
class Record:
    """One repetition."""

    workload: str
    system: str
    figures: Figures
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class Spread:
    """What repetitions of one figure say."""

    median: float
    least: float
    most: float
    count: int


@dataclass(slots=True)
class Records:
    """All of them, with what a reader has to know of the machine and of what could not be measured."""

    all: list[Record] = field(default_factory=list)
    machine: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    # Systems that are not here, and why.
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, workload: str, system: str, figures: Figures) -> None:
        self.all.append(Record(workload, system, figures))

    def systems(self, workload: str) -> list[str]:
        """Who was measured, ours first."""
        return sorted(
            {one.system for one in self.all if one.workload == workload}, key=lambda name: (name != OURS, name)
        )

    def workloads(self) -> list[str]:
        return sorted({one.workload for one in self.all}, key=lambda name: (len(name), name))

    def names(self, workload: str, system: str) -> list[str]:
        """The figures there are, in the order in which they were measured."""
        return list(dict.fromkeys(name for one in self._of(workload, system) for name in one.figures))

    def spread(self, workload: str, system: str, figure: str) -> Spread | None:
        values = [one.figures[figure] for one in self._of(workload, system) if figure in one.figures]
        if not values:
            return None
        return Spread(statistics.median(values), min(values), max(values), len(values))

    def _of(self, workload: str, system: str) -> list[Record]:
        return [one for one in self.all if one.workload == workload and one.system == system]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Self:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cls([Record(**one) for one in found.pop("all")], **found)
