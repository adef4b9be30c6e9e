"""The HTTP API over sockets: what it does, how it writes values, and how it says no."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from kagzi.dashboard import gateway
from kagzi.dashboard.api.table import APART, ROUTES
from tests.dashboard.place import Place, Space
from tests.dashboard.workflows import approved, doubled
from tests.house.tree import ROOT

SOMEBODY = "00000000-0000-0000-0000-000000000001"


def calls() -> set[str]:
    """Every call of the contract but those of workers."""
    services = (
        gateway.method("WorkflowService.GetWorkflow").containing_service,
        gateway.method("WorkflowScheduleService.GetSchedule").containing_service,
        gateway.method("AdminService.GetStats").containing_service,
        gateway.method("NamespaceService.GetNamespace").containing_service,
        gateway.method("AutomationService.GetAutomation").containing_service,
    )
    return {f"{service.name}.{method.name}" for service in services for method in service.methods}


def test_every_call_of_the_contract_that_a_client_can_want_has_a_route() -> None:
    assert calls() == {route.rpc for route in ROUTES} | APART


def test_every_call_that_a_person_can_want_has_a_page() -> None:
    pages = ROOT / "src" / "kagzi" / "dashboard" / "pages"
    texts = [path.read_text(encoding="utf-8") for path in pages.glob("*.py")]
    shown = {call for text in texts for call in re.findall(r'"(\w+Service\.\w+)"', text)}
    # A person starts one run at a time, and a page that is live has no need to wait for an end.
    assert calls() - shown == APART | {"WorkflowService.StartWorkflows"}


def test_a_run_is_started_watched_and_read(space: Space) -> None:
    with space.worker(doubled):
        started = space.api("POST", "/runs", 201, json={"workflow_type": "doubled", "input": 21, "external_id": "one"})
        ended = space.api("GET", f"/runs/{started['run_id']}/result")
    assert (ended["status"], ended["output"]) == ("COMPLETED", 42)
    run = space.api("GET", "/runs/find", params={"external_id": "one"})["run"]
    assert (run["run_id"], run["input"], run["output"]) == (started["run_id"], 21, 42)
    assert run["finished_at"].endswith("Z")
    [found] = space.api("GET", f"/runs/{run['run_id']}/steps", params={"include_outputs": "true"})["steps"]
    assert (found["step_id"], found["status"], found["kind"], found["output"]) == (
        "double",
        "COMPLETED",
        "FUNCTION",
        42,
    )


def test_a_run_that_waits_is_signalled(space: Space) -> None:
    with space.worker(approved):
        run_id = space.api("POST", "/runs", json={"workflow_type": "approved"})["run_id"]
        waiting = space.api("GET", f"/runs/{run_id}/result", 202, params={"timeout_ms": 50})
        assert (waiting["status"] in {"PENDING", "RUNNING", "SLEEPING"}, waiting["output"]) == (True, None)
        space.api("POST", f"/runs/{run_id}/signal", json={"name": "approve", "payload": "by hand"})
        assert space.api("GET", f"/runs/{run_id}/result")["output"] == "by hand"


def test_a_run_that_is_started_within_a_trace_goes_on_in_it(space: Space) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for header, labels in ((parent, {"traceparent": parent}), ("nonsense", {})):
        run_id = space.api("POST", "/runs", json={"workflow_type": "later"}, headers={"traceparent": header})["run_id"]
        assert space.api("GET", f"/runs/{run_id}")["run"]["labels"] == labels


def test_runs_are_listed_by_status_label_and_page(space: Space) -> None:
    for number in range(3):
        space.api("POST", "/runs", json={"workflow_type": "later", "labels": {"customer": str(number % 2)}})
    found = space.api("GET", "/runs", params={"label": ["customer=0"], "status": ["PENDING", "RUNNING"]})["runs"]
    assert [run["labels"] for run in found] == [{"customer": "0"}] * 2
    first = space.api("GET", "/runs", params={"page_size": 2})
    rest = space.api("GET", "/runs", params={"page_size": 2, "page_token": first["next_page_token"]})
    assert (len(first["runs"]), len(rest["runs"]), rest["next_page_token"]) == (2, 1, "")


def test_a_payload_that_is_no_plain_json_travels_as_it_is(space: Space) -> None:
    encoded = {"$encoding": "json+zlib", "$data": "eJyrVkosLVGyMtRRSsoszFGyMqgFACdZBEw="}
    run_id = space.api("POST", "/runs", json={"workflow_type": "later", "input": encoded})["run_id"]
    assert space.api("GET", f"/runs/{run_id}")["run"]["input"] == encoded
    # A value that looks like the form for encoded ones is not mistaken for one.
    inner = {"$encoding": "json", "$data": "eyIkZW5jb2RpbmciOiJ4IiwiJGRhdGEiOiJ5In0="}
    run_id = space.api("POST", "/runs", json={"workflow_type": "later", "input": inner})["run_id"]
    assert space.api("GET", f"/runs/{run_id}")["run"]["input"] == inner


@pytest.mark.parametrize(
    ("verb", "path", "body", "status", "code", "field"),
    [
        ("POST", "/runs", {}, 400, "INVALID_ARGUMENT", "workflow_type"),
        ("POST", "/runs", {"workflow_typ": "x"}, 400, "INVALID_ARGUMENT", "workflow_typ"),
        ("POST", "/runs", {"workflow_type": 7}, 400, "INVALID_ARGUMENT", "workflow_type"),
        ("POST", "/runs", {"workflow_type": "x", "priority": 9}, 400, "INVALID_ARGUMENT", "priority"),
        ("POST", "/runs", {"workflow_type": "x", "priority": 2**31}, 400, "INVALID_ARGUMENT", "priority"),
        ("POST", "/runs", {"workflow_type": "\ud800"}, 400, "INVALID_ARGUMENT", "workflow_type"),
        ("POST", "/runs", {"workflow_type": "x", "start_at": 5}, 400, "INVALID_ARGUMENT", "start_at"),
        ("POST", "/runs", {"workflow_type": "x", "start_at": "2026-01-01"}, 400, "INVALID_ARGUMENT", "start_at"),
        ("POST", "/runs", {"workflow_type": "x" * 256}, 413, "LIMIT_EXCEEDED", "workflow_type"),
        ("GET", "/runs?status=NEW", None, 400, "INVALID_ARGUMENT", "status.0"),
        ("GET", "/runs?label=customer", None, 400, "INVALID_ARGUMENT", "label.0"),
        ("GET", "/runs/one", None, 400, "INVALID_ARGUMENT", "run_id"),
        ("GET", f"/runs/{SOMEBODY}", None, 404, "NOT_FOUND", "run_id"),
        ("GET", "/nothing", None, 404, "NOT_FOUND", ""),
        ("POST", f"/runs/{SOMEBODY}/steps/a%2Fb/resolve", {"resolution": "FAIL"}, 404, "NOT_FOUND", "run_id"),
        (
            "POST",
            "/schedules/preview",
            {"proposal": {}, "schedule_id": "both"},
            400,
            "INVALID_ARGUMENT",
            "proposal",
        ),
    ],
)
def test_a_refusal_is_a_problem_document_that_names_the_field(
    space: Space, verb: str, path: str, body: Any, status: int, code: str, field: str
) -> None:
    content, headers = (None, {}) if body is None else (json.dumps(body), {"content-type": "application/json"})
    answer = space.http.request(verb, f"/api/v1{path}", content=content, headers=headers)
    told = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, told["status"], told["code"], told["field"]) == (status, status, code, field)
    assert told["detail"]


@pytest.mark.parametrize("body", [b"{", b'{"workflow_type": "x", "input": NaN}', b"[1]", b'"' + b"[" * 9_999, b"\xff"])
def test_what_is_no_json_is_refused(space: Space, body: bytes) -> None:
    answer = space.http.post("/api/v1/runs", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize(("body", "reason"), [(b'{"workflow_type": }', "at character 18"), (b"\xff", "can't decode")])
def test_where_a_body_ceases_to_be_json_is_said_and_blamed_on_no_field(space: Space, body: bytes, reason: str) -> None:
    told = space.http.post("/api/v1/runs", content=body, headers={"content-type": "application/json"}).json()
    assert told["field"] == ""
    assert told["detail"].startswith("the body is no JSON: ")
    assert reason in told["detail"]


def test_what_can_be_read_has_a_head(space: Space) -> None:
    answer = space.http.head("/api/v1/runs")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == "application/json"


def test_a_body_beyond_the_limit_is_not_read(space: Space) -> None:
    def endless() -> Any:
        for _ in range(10):
            yield b" " * 2**20

    answer = space.http.post("/api/v1/runs", content=endless(), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "LIMIT_EXCEEDED")


def test_a_name_that_is_not_ours_is_refused(place: Place) -> None:
    answer = httpx.get(f"{place.url}/api/v1/server", headers={"host": "rebound.example"})
    assert (answer.status_code, answer.json()["field"]) == (421, "host")


@pytest.mark.parametrize("header", [{"origin": "http://other.example"}, {"sec-fetch-site": "cross-site"}])
def test_a_page_of_another_site_changes_nothing(space: Space, header: dict[str, str]) -> None:
    answer = space.http.post("/api/v1/runs", json={"workflow_type": "x"}, headers=header)
    assert answer.status_code == 403
    assert space.api("GET", "/runs")["runs"] == []


def test_a_server_that_is_away_is_said_with_when_to_come_back(place: Place) -> None:
    from kagzi.dashboard.site import Site

    site = Site("127.0.0.1:1", port=0)
    place.do(site.start())
    try:
        answer = httpx.get(f"{site.address}/api/v1/server", timeout=30)
        assert (answer.status_code, answer.json()["code"]) == (503, "UNAVAILABLE")
        assert httpx.get(f"{site.address}/readyz").status_code == 503
        assert httpx.get(f"{site.address}/healthz").status_code == 200
    finally:
        place.do(site.stop())


def test_the_reference_loads_nothing_from_anywhere_else(space: Space) -> None:
    page = space.http.get("/api/docs")
    assert (page.status_code, "/api/v1/runs/{run_id}/cancel" in page.text) == (200, True)
    assert "http://" not in page.text.replace("http://www.w3.org", "")
    assert "https://" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_vitals_are_for_machines(space: Space) -> None:
    assert space.http.get("/healthz").text == "alive\n"
    ready = space.http.get("/readyz")
    assert (ready.status_code, "database: well" in ready.text) == (200, True)
    metrics = space.http.get("/metrics")
    assert (metrics.status_code, "kagzi_build_info" in metrics.text) == (200, True)
