"""Takes each guard out of the store's SQL in turn and shows that a fast test fails for it.

    python -m tools.mutants [--only WORDS] [--part 1/2] [--seen FILE] [--seconds 30] [--tests …] [--list]

All tests of the fast rooms run once, undisturbed; it is noted which statements each of them runs. Then, for each
guard, the tests that run its statement run again without it until one fails. Those for which none fails are printed at
the end, and the exit code is 1. Everything happens in one process and on the tests' own database server: nothing is
edited.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

import kagzi.store
from kagzi.store.queries import Query, bound
from tools.predicates import Guard, guards

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("laws", "store", "automations", "schedules", "server")
# A test that hangs without a guard has failed.
_PATIENCE = 20

Key = tuple[str, str]


def known() -> list[Guard]:
    """Every guard of every statement of the store."""
    for found in pkgutil.iter_modules(kagzi.store.__path__):
        importlib.import_module(f"kagzi.store.{found.name}")
    return [guard for query in bound for guard in guards(query.source, query.name, query.text)]


class Trial:
    """The plugin that runs the tests, first as they are and then once for each guard."""

    def __init__(self, chosen: list[Guard], seconds: float, seen: Path | None) -> None:
        self._chosen = chosen
        self._seconds = seconds
        self._seen = seen
        self._running = ""
        self._ran: dict[Key, set[str]] = defaultdict(set)
        self._cost: dict[str, float] = {}
        self._without: dict[Key, str] = {}
        self.survivors: list[Guard] = []
        self.broken: list[str] = []
        self.killed = 0

    def watch(self) -> None:
        """From now on statements are noted, and run without a guard that was taken out."""
        plain = Query._arguments  # noqa: SLF001 - where every statement passes
        trial = self

        def arguments(query: Query, values: dict[str, Any]) -> Any:
            trial._ran[query.source, query.name].add(trial._running)
            return plain(query, values)

        def text(query: Query) -> str:
            return trial._without.get((query.source, query.name)) or stored(query)

        stored = Query.__dict__["text"].__get__
        setattr(Query, "_arguments", arguments)  # noqa: B010 - a method of a class that is otherwise closed
        setattr(Query, "text", property(text))  # noqa: B010

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        if self._seen is None or not self._seen.exists():
            self._look(list(items.values()))
        else:
            self._remember(json.loads(self._seen.read_text()), items)
        print(f"\n{len(items)} tests, {sum(self._cost.values()):.0f} s; {len(self._chosen)} guards", flush=True)
        for number, guard in enumerate(self._chosen, 1):
            self._judge(guard, items, f"{number}/{len(self._chosen)}")
        session._setupstate.teardown_exact(None)  # noqa: SLF001 - pytest has no public way to run a test again
        return True

    def _look(self, order: list[pytest.Item]) -> None:
        for item, following in zip(order, [*order[1:], order[0]], strict=True):
            if not self._passes(item, following):
                self.broken.append(item.nodeid)
        if self._seen is not None:
            ran = [[*key, sorted(names - {"", *self.broken})] for key, names in self._ran.items()]
            self._seen.write_text(json.dumps({"ran": ran, "cost": self._cost}))

    def _remember(self, seen: dict[str, Any], items: dict[str, pytest.Item]) -> None:
        self._ran.update({(source, name): {one for one in ran if one in items} for source, name, ran in seen["ran"]})
        self._cost.update(seen["cost"])

    def _judge(self, guard: Guard, items: dict[str, pytest.Item], place: str) -> None:
        key = guard.source, guard.name
        candidates = self._candidates(key)
        if candidates:
            # The test before this one was told that another would follow it.
            items[candidates[0]].session._setupstate.teardown_exact(items[candidates[0]])  # noqa: SLF001
        self._without[key] = guard.without
        began, tried = time.monotonic(), 0
        for name, following in zip(candidates, [*candidates[1:], candidates[0]], strict=True) if candidates else ():
            tried += 1
            if not self._passes(items[name], items[following]):
                self.killed += 1
                print(f"{place} {guard.title}: {name}", flush=True)
                break
            if time.monotonic() - began > self._seconds:
                candidates = []
                break
        else:
            candidates = []
        del self._without[key]
        if not candidates:
            self.survivors.append(guard)
            print(f"{place} {guard.title}: SURVIVED {tried} tests", flush=True)

    def _candidates(self, key: Key) -> list[str]:
        """The tests that run the statement: the rooms' modules one after the other, the quickest first."""
        modules: dict[str, list[str]] = defaultdict(list)
        for name in self._ran[key] - {"", *self.broken}:
            modules[name.partition("::")[0]].append(name)
        price = {module: min(self._cost[name] for name in names) for module, names in modules.items()}
        return [
            name
            for module in sorted(modules, key=lambda module: price[module])
            for name in sorted(modules[module], key=lambda name: self._cost[name])
        ]

    def _passes(self, item: pytest.Item, following: pytest.Item) -> bool:
        began = time.monotonic()
        if hasattr(item, "_initrequest"):
            item._initrequest()  # noqa: SLF001
        self._running = item.nodeid
        reports = runtestprotocol(item, log=False, nextitem=following)
        self._running = ""
        self._cost.setdefault(item.nodeid, time.monotonic() - began)
        return not any(report.failed for report in reports)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="guards whose title holds these words")
    parser.add_argument("--part", default="1/1", help="one of several parts, as 2/3")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each guard, the quickest tests first")
    parser.add_argument("--seen", type=Path, help="where it is kept which tests run which statement")
    parser.add_argument(
        "--tests", nargs="*", default=[f"tests/{room}" for room in ROOMS], help="others than the fast ones"
    )
    parser.add_argument("--list", action="store_true", help="print the guards and run nothing")
    asked = parser.parse_args()
    part, parts = (int(number) for number in asked.part.split("/"))
    chosen = [guard for guard in known() if asked.only in guard.title][part - 1 :: parts]
    if asked.list:
        print("\n".join(guard.title for guard in chosen))
        return 0
    trial = Trial(chosen, asked.seconds, asked.seen)
    trial.watch()
    rooms = [str(ROOT / path) for path in asked.tests]
    options = [
        "-q",
        "-W",
        "ignore:Module already imported",
        "-p",
        "no:cacheprovider",
        f"--timeout={_PATIENCE}",
        f"--rootdir={ROOT}",
        "-m",
        "not slow",
    ]
    pytest.main([*options, *rooms], plugins=[trial])
    for name in trial.broken:
        print(f"fails as it is: {name}")
    print(f"{trial.killed} of {len(chosen)} guards are seen by a test; {len(trial.survivors)} are not")
    for guard in trial.survivors:
        print(f"  {guard.title}")
    return 1 if trial.survivors or trial.broken else 0


if __name__ == "__main__":
    sys.exit(main())
