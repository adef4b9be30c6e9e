"""A name in a query that a route does not know is refused and named, with the one that was perhaps meant."""

from __future__ import annotations

from typing import Any

import pytest

from kagzi.dashboard.api.table import ROUTES
from tests.dashboard.place import Space

SOMEBODY = "00000000-0000-0000-0000-000000000001"


@pytest.mark.parametrize(
    ("path", "name", "said"),
    [
        ("/runs", "stauts", "did you mean 'status'?"),
        ("/runs", "statuses", "did you mean 'status'?"),
        ("/runs", "labels", "did you mean 'label'?"),
        ("/runs", "zzz", "it takes "),
        ("/schedules", "namespaces", "did you mean 'namespace'?"),
        (f"/runs/{SOMEBODY}/result", "timeout", "did you mean 'timeout_ms'?"),
    ],
)
def test_an_unknown_name_is_refused_with_what_was_perhaps_meant(space: Space, path: str, name: str, said: str) -> None:
    told = space.api("GET", path, 400, params={name: "FAILED"})
    assert (told["code"], told["field"]) == ("INVALID_ARGUMENT", name)
    assert told["detail"].startswith(f"{name!r} is no parameter here: ")
    assert said in told["detail"]


def test_nothing_is_done_for_a_request_with_an_unknown_name(space: Space) -> None:
    space.api("POST", "/runs", 400, params={"dry_run": "true"}, json={"workflow_type": "doubled"})
    assert space.api("GET", "/runs")["runs"] == []


def test_no_route_takes_one(space: Space) -> None:
    for route in ROUTES:
        path = route.path
        for name in ("run_id", "schedule_id", "key_id", "worker_id", "name", "step_id"):
            path = path.replace(f"{{{name}}}", SOMEBODY).replace(f"{{{name}:path}}", SOMEBODY)
        body: dict[str, Any] = {"json": {}} if route.verb in ("POST", "PATCH") else {}
        assert space.api(route.verb, path, 400, params={"no_such_name": "1"}, **body)["field"] == "no_such_name"


def test_a_name_that_has_one_value_is_refused_when_it_is_given_twice(space: Space) -> None:
    for path, name in (("/runs", "workflow_type"), ("/runs", "page_size"), (f"/runs/{SOMEBODY}/result", "timeout_ms")):
        told = space.api("GET", path, 400, params={name: ["1", "2"]})
        assert told["field"] == name
        assert told["detail"] == f"{name!r} is given 2 times, and has one value: leave the others out"
    assert space.api("GET", "/runs", 400, params={"namespace": [space.name, "other"]})["field"] == "namespace"
    several = {"status": ["FAILED", "CANCELLED"], "label": ["a=1", "b=2"]}
    assert space.api("GET", "/runs", params=several)["runs"] == []
