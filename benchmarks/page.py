"""The figures for a document: the same records as tables in Markdown. `docs/performance.md` is written from it."""

from __future__ import annotations

from benchmarks.records import OURS, Records, Spread
from benchmarks.table import LIMIT, beside
from benchmarks.targets import TARGETS, misses


def page(records: Records) -> str:
    """Machine and versions, then every table, then what was missed and who is missing."""
    parts = [
        " · ".join(f"{name} {value}" for name, value in {**records.machine, **records.versions}.items()),
        _beside(records),
        _limits(records),
        _targets(records),
        _costs(records),
        "\n".join(f"- {miss}" for miss in misses(records)),
        "\n".join(f"- not measured: {system}: {reason}" for system, reason in records.missing.items()),
    ]
    return "\n\n".join(part for part in parts if part)


def _rows(*rows: list[str]) -> str:
    head, *rest = rows
    lines = [head, ["---"] * len(head), *rest]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) if rest else ""


def _beside(records: Records) -> str:
    peers = sorted({one.system for one in records.all} - {OURS, LIMIT})
    rows = []
    for target in TARGETS:
        ours = records.spread(target.workload, OURS, target.figure)
        theirs = {peer: records.spread(target.workload, peer, target.figure) for peer in peers}
        if ours is not None and any(theirs.values()):
            cells = [beside(target, ours, each) for each in theirs.values()]
            rows.append([target.workload.upper(), f"{target.what}, {target.unit}", _figure(ours.median), *cells])
    return _rows(["", "", OURS, *peers], *rows)


def _limits(records: Records) -> str:
    ours = records.spread("w1", OURS, "runs_per_s")
    rows = []
    for name in records.names("w1", LIMIT):
        seen = records.spread("w1", LIMIT, name)
        if seen is not None and ours is not None and name.endswith("runs_per_s"):
            told = name.removesuffix("_runs_per_s").replace("_", " ")
            rows.append([told, _figure(seen.median), f"{100 * ours.median / seen.median:,.0f} %"])
    return _rows(["plain SQL", "runs/s", "Kagzi's W1 of it"], *rows)


def _targets(records: Records) -> str:
    rows = []
    for target in TARGETS:
        seen = records.spread(target.workload, OURS, target.figure)
        if seen is not None:
            noise = [records.spread(target.workload, OURS, name) for name in ("steal_percent", "others_percent")]
            told = "met" if target.met(seen.median) else "**missed**"
            rows.append(
                [target.workload.upper(), target.what, _spread(seen), str(seen.count), f"{target.told()}: {told}"]
                + [_figure(each.median) if each else "" for each in noise]
            )
    return _rows(["", "", "median (least to most)", "of", "wanted", "steal %", "others %"], *rows)


def _costs(records: Records) -> str:
    rows = []
    for system in records.systems("w1"):
        names = [name for name in records.names("w1", system) if name.startswith("cpu_us_per_run_")]
        spent = {name.rpartition("_")[2]: records.spread("w1", system, name) for name in names}
        held = {part: records.spread("w1", system, f"memory_mb_{part}") for part in spent}
        total = records.spread("w1", system, "cpu_us_per_run")
        if total is not None:
            cpu = ", ".join(f"{part} {_figure(each.median)}" for part, each in spent.items() if each)
            memory = ", ".join(f"{part} {each.median:.0f}" for part, each in held.items() if each)
            rows.append([system, _figure(total.median), cpu, memory])
    return _rows(["W1", "CPU µs a run", "by process", "memory in MB"], *rows)


def _spread(seen: Spread) -> str:
    return f"{_figure(seen.median)} ({_figure(seen.least)} to {_figure(seen.most)})"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
