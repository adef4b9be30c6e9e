"""`python -m benchmarks [NAME …] [--repeat N] [--json FILE]`: runs workloads and prints a table."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.lab import laboratory
from benchmarks.workloads import WORKLOADS, Figures


def main() -> None:
    """Runs what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", default=list(WORKLOADS), help=f"of {', '.join(WORKLOADS)}; all by default")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {name: [_measure(name) for _ in range(options.repeat)] for name in options.names}
    _print(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


def _measure(name: str) -> Figures:
    async def measure() -> Figures:
        async with laboratory() as lab:
            async with asyncio.timeout(300):
                return await WORKLOADS[name](lab)

    return uvloop.run(measure())


def _print(results: dict[str, list[Figures]]) -> None:
    table = Table("workload", "figure", "median", "least", "most")
    for name, runs in results.items():
        for figure in runs[0]:
            values = [run[figure] for run in runs]
            table.add_row(
                name, figure, f"{statistics.median(values):,.1f}", f"{min(values):,.1f}", f"{max(values):,.1f}"
            )
    Console().print(table)


if __name__ == "__main__":
    main()
