"""The figures for people: first how we stand to each peer and to the limit, then every target, then what was spent."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.records import OURS, Records, Spread
from benchmarks.targets import RATIOS, TARGETS, Target, misses

LIMIT = "limit"


def show(records: Records, console: Console) -> None:
    console.print(" · ".join(f"{name} {value}" for name, value in {**records.machine, **records.versions}.items()))
    for system, reason in records.missing.items():
        console.print(f"[bold yellow]not measured: {system}[/bold yellow]: {reason}")
    for table in (_ratios(records), _limits(records), _targets(records), _costs(records)):
        if table.row_count:
            console.print(table)
    for miss in misses(records):
        console.print(f"[bold red]missed[/bold red] {miss}")


def _ratios(records: Records) -> Table:
    peers = sorted({one.system for one in records.all} - {OURS, LIMIT})
    table = Table("workload", "figure", OURS, *peers, title="beside its peers (how many times better)")
    for target in TARGETS:
        ours = records.spread(target.workload, OURS, target.figure)
        theirs = [records.spread(target.workload, peer, target.figure) for peer in peers]
        if ours is None or not any(theirs):
            continue
        cells = [beside(target, ours, each) + _wanted(target, peer) for peer, each in zip(peers, theirs, strict=True)]
        table.add_row(target.workload.upper(), f"{target.what}, {target.unit}", f"{ours.median:,.4g}", *cells)
    return table


def beside(target: Target, ours: Spread, theirs: Spread | None) -> str:
    """Their figure, and how many times better ours is."""
    if theirs is None:
        return ""
    above, below = (ours, theirs) if target.at_least else (theirs, ours)
    ratio = above.median / below.median if below.median else float("inf")
    return f"{theirs.median:,.4g} ({ratio:,.1f} x)"


def _wanted(target: Target, peer: str) -> str:
    return f", wanted {RATIOS[peer]:g} x" if target.workload == "w1" and peer in RATIOS else ""


def _limits(records: Records) -> Table:
    table = Table("plain SQL, a run of 3 steps", "runs/s", "ours of it", title="beside the limit of the same database")
    ours = records.spread("w1", OURS, "runs_per_s")
    for name in records.names("w1", LIMIT):
        seen = records.spread("w1", LIMIT, name)
        if seen is not None and name.endswith("runs_per_s"):
            share = f"{100 * ours.median / seen.median:,.0f} %" if ours else ""
            table.add_row(name.removesuffix("_runs_per_s").replace("_", " "), f"{seen.median:,.0f}", share)
    return table


def _targets(records: Records) -> Table:
    table = Table(
        "workload", "figure", "median", "least", "most", "of", "wanted", "", "steal %", "others %", title="targets"
    )
    for target in TARGETS:
        seen = records.spread(target.workload, OURS, target.figure)
        if seen is None:
            continue
        noise = [records.spread(target.workload, OURS, name) for name in ("steal_percent", "others_percent")]
        table.add_row(
            target.workload.upper(),
            target.what,
            *(f"{value:,.4g}" for value in (seen.median, seen.least, seen.most)),
            str(seen.count),
            target.told(),
            "[green]met[/green]" if target.met(seen.median) else "[red]missed[/red]",
            *(f"{each.median:.1f}" if each else "" for each in noise),
        )
    return table


def _costs(records: Records) -> Table:
    table = Table("workload", "system", "figure", "median", "least", "most", title="all figures")
    for workload in records.workloads():
        for system in records.systems(workload):
            for name in records.names(workload, system):
                seen = records.spread(workload, system, name)
                if seen is not None:
                    table.add_row(
                        workload.upper(), system, name, *(f"{x:,.4g}" for x in (seen.median, seen.least, seen.most))
                    )
    return table
