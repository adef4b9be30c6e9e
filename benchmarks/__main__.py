"""`python -m benchmarks [NAME …]`: measures workloads, beside peers and the limit of plain SQL, and prints tables.
`python -m benchmarks soak` keeps half the load up for minutes; `table FILE` and `page FILE` show what was kept.
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

import uvloop
from rich.console import Console

from benchmarks import soak
from benchmarks.page import page
from benchmarks.peers.contest import PEERS
from benchmarks.records import Records
from benchmarks.rounds import Plan, measured
from benchmarks.table import LIMIT, show
from benchmarks.workloads import NAMES

# What is no workload.
_OTHERWISE = ("soak", "table", "page")


def main() -> None:
    """Does what was asked for."""
    options = _options()
    # Whoever ends it means its servers, workers and databases too.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    console = Console(width=None if Console().is_terminal else 160)
    if options.names[:1] == ["soak"]:
        raise SystemExit(uvloop.run(soak.run(console, options.minutes, options.json)))
    if options.names[:1] in (["table"], ["page"]):
        kept = Records.read(Path(options.names[1]))
        if options.names[0] == "page":
            print(page(kept))
        else:
            show(kept, console)
        return
    records = Records.read(options.json) if options.append and options.json and options.json.exists() else Records()
    plan = Plan(tuple(options.names or NAMES), options.repeat, _beside(options.beside), options.json)
    show(uvloop.run(measured(plan, records, console)), console)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help=f"of {', '.join(NAMES)}, all by default; or: soak; or: table FILE, page FILE"
    )
    parser.add_argument("--repeat", type=int, default=5, help="repetitions of each, 5 by default")
    parser.add_argument(
        "--beside", default="all", help=f"who else does it: all, none, or of {', '.join((*_others(), 'kagzi'))}"
    )
    parser.add_argument("--json", type=Path, help="where the records are kept, also when it is stopped in between")
    parser.add_argument("--append", action="store_true", help="keep the records that are in that file already")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the soak lasts")
    options = parser.parse_args()
    wrong = [name for name in options.names if name not in NAMES]
    if wrong and options.names[0] not in _OTHERWISE:
        parser.error(f"{wrong[0]} is no workload: name some of {', '.join(NAMES)}, or soak")
    if options.names[:1] in (["table"], ["page"]) and (len(options.names) != 2 or not Path(options.names[1]).is_file()):
        parser.error(f"{options.names[0]} takes the file that --json kept")
    if options.repeat < 1 or options.minutes <= 0:
        parser.error("--repeat and --minutes are more than zero")
    unknown = set(_beside(options.beside)) - {*_others(), "kagzi"}
    if unknown:
        parser.error(f"--beside {unknown.pop()} is nobody: name some of {', '.join(_others())}")
    return options


def _beside(text: str) -> tuple[str, ...]:
    if text == "none":
        return ()
    return _others() if text == "all" else tuple(text.split(","))


def _others() -> tuple[str, ...]:
    return (*(peer.name for peer in PEERS), LIMIT)


if __name__ == "__main__":
    main()
