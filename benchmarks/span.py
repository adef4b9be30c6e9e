"""A span of measured time: how long it took, what each part of a system spent meanwhile, and how much of the machine
was taken away. Every figure of a workload comes with those: a reader can tell a slow program from a busy machine.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from benchmarks import machine

Figures = dict[str, float]
# The processes of a system, by the part they play.
Parts = dict[str, list[int]]


class Span:
    """Measures from `with` to its end."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.seconds = 0.0
        self.steal_percent = 0.0
        # Of all cores, what went to processes that are no part of this.
        self.others_percent = 0.0
        self.cpu: dict[str, float] = {}
        self.memory: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._cpu = {part: machine.cpu_seconds(pids) for part, pids in self._parts.items()}
        self._ticks = machine.ticks()
        self._began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._began
        busy, steal = (now - then for now, then in zip(machine.ticks(), self._ticks, strict=True))
        self.steal_percent = 100 * steal / max(1, busy + steal)
        self.cpu = {part: machine.cpu_seconds(pids) - self._cpu[part] for part, pids in self._parts.items()}
        self.others_percent = 100 * machine.others(busy, sum(self.cpu.values()), self.seconds)
        self.memory = {part: machine.memory_mb(pids) for part, pids in self._parts.items()}

    def figures(self, runs: int = 0) -> Figures:
        """What was spent, by part; for each of `runs` too, where there were some."""
        found = {"seconds": self.seconds, "steal_percent": self.steal_percent, "others_percent": self.others_percent}
        found |= {f"cpu_s_{part}": spent for part, spent in self.cpu.items()}
        if runs:
            found |= {f"cpu_us_per_run_{part}": spent / runs * 1e6 for part, spent in self.cpu.items()}
            found["cpu_us_per_run"] = sum(self.cpu.values()) / runs * 1e6
        return found | {f"memory_mb_{part}": held for part, held in self.memory.items()}
