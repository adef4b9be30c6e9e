"""Every call of the contract that a person could want has its command, its route and its page, and nothing there is
about calls that do not exist. That each command makes its call is shown where the commands are run.
"""

from __future__ import annotations

import inspect
import sys

from kagzi.dashboard.api.table import ROUTES
from tests.house.surface import calls, commands, entries, pages, table


def test_the_table_tells_every_call_and_no_other() -> None:
    assert entries().keys() == calls()


def test_a_call_without_command_route_or_page_says_why() -> None:
    lacking = {
        call: missing
        for call, entry in entries().items()
        if (missing := {"command", "routes", "page"} - entry.keys()) and not entry.get("apart")
    }
    strange = {
        call for call, entry in entries().items() if entry.keys() - {"command", "routes", "page", "apart", "same_as"}
    }
    assert (lacking, strange) == ({}, set())


def test_every_command_exists_and_is_told() -> None:
    told = {entry["command"] for entry in entries().values() if "command" in entry}
    assert told - commands().keys() == set()
    assert commands().keys() - told - table()["commands"].keys() == set()


def test_the_routes_of_a_call_are_those_of_the_api() -> None:
    served: dict[str, list[str]] = {}
    for route in ROUTES:
        served.setdefault(route.rpc, []).append(f"{route.verb} {route.path}")
    assert {call: entry["routes"] for call, entry in entries().items() if "routes" in entry} == served


def test_every_page_exists_makes_its_call_and_is_told() -> None:
    wrong = []
    told = {call: entry["page"] for call, entry in entries().items() if "page" in entry}
    for call, page in told.items():
        behind = pages().get(page)
        source = "" if behind is None else inspect.getsource(sys.modules[behind.__module__])
        if f'"{call}"' not in source:
            wrong.append((call, page))
    assert wrong == []
    assert pages().keys() - set(told.values()) - table()["pages"].keys() == set()


def test_every_command_answers_as_json() -> None:
    silent = [
        name for name, command in commands().items() if not any("--json" in option.opts for option in command.params)
    ]
    assert silent == ["completion"]
