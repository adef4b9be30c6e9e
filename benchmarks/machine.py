"""What the machine tells of processes and of itself: CPU time, memory, and the time that a hypervisor took away. Read
from `/proc`; where there is none, figures are zero rather than invented.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time of these processes and of all they started; of this process, which starts all others, its own alone."""
    return sum(_cpu(pid) for root in pids for pid in _counted(root))


def memory_mb(pids: Iterable[int]) -> float:
    """Resident memory of these processes; of those with others below them their shares, so that all is counted once."""
    return sum(_memory(pid, shared=len(_counted(root)) > 1) for root in pids for pid in _counted(root))


def _counted(root: int) -> list[int]:
    return [root] if root == os.getpid() else family(root)


def family(pid: int) -> list[int]:
    """The process and all below it."""
    found = []
    for task in _PROC.glob(f"{pid}/task/*/children"):
        try:
            found += [int(child) for child in task.read_text().split()]
        except OSError:
            continue
    return [pid, *(grandchild for child in found for grandchild in family(child))]


def ticks() -> tuple[int, int]:
    """Time so far that the machine was busy, and that was stolen from it."""
    try:
        fields = [int(field) for field in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return 0, 0
    user, nice, system, _, _, irq, softirq, steal = fields
    return user + nice + system + irq + softirq, steal


def others(busy: int, ours: float, seconds: float) -> float:
    """The part of all cores that was busy with something else than ours."""
    return max(0.0, busy / _TICKS - ours) / (seconds * (os.cpu_count() or 1))


def description() -> dict[str, str]:
    """What a reader of figures needs to know of the machine."""
    return {
        "cpu": _line(_PROC / "cpuinfo", "model name") or platform.processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{int((_line(_PROC / 'meminfo', 'MemTotal') or '0 kB').split()[0]) / 2**20:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _cpu(pid: int) -> float:
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    # With what ended children had: backends come and go.
    return sum(int(field) for field in fields[11 : 13 if pid == os.getpid() else 15]) / _TICKS


def _memory(pid: int, *, shared: bool) -> float:
    folder = _PROC / str(pid)
    held = (shared and _line(folder / "smaps_rollup", "Pss:")) or _line(folder / "status", "VmRSS")
    return int(held.split()[0]) / 1024 if held else 0.0


def _line(path: Path, name: str) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
