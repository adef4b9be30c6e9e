"""Pages speak of what stands on them, not of the names of the contract."""

from __future__ import annotations

import html
import re

import pytest

from kagzi.dashboard import gateway, wording
from kagzi.dashboard.api.table import ROUTES
from tests.dashboard.place import Space

SOMEBODY = "00000000-0000-0000-0000-000000000001"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("step_id is missing", "the step is missing"),
        ("attempt_number is 7, and none is beyond 5", "the attempt is 7, and none is beyond 5"),
        ("external_id has 3000 bytes", "the name of your own has 3000 bytes"),
        ("key.type is missing", "the type of the input is missing"),
        ("say delay_ms or start_at, not both", "say the delay or the beginning, not both"),
        ("labels is missing", "a label is missing"),
        ("events[0].event_id is missing", "the event is missing"),
        # What somebody wrote, and what only looks like it.
        ("there is no step 'step_id'", "there is no step 'step_id'"),
        ("`kagzi worker --task_queue x`", "`kagzi worker --task_queue x`"),
        ("step_id=5 of send_mail", "step_id=5 of send_mail"),
    ],
)
def test_names_of_the_contract_become_words(told: str, said: str) -> None:
    assert wording.spoken(told) == said


def test_every_field_has_a_word() -> None:
    fields = {field.name for route in ROUTES for field in gateway.method(route.rpc).input_type.fields}
    assert len(fields) > 50
    assert [name for name in fields if "_" in wording.word(name)] == []


def test_no_page_that_refuses_shows_a_name_of_the_contract(space: Space) -> None:
    run_id = space.api("POST", "/runs", json={"workflow_type": "nobody"})["run_id"]
    addresses = [
        f"/runs/{run_id}/step?id=",
        f"/runs/{run_id}/step?id=none",
        f"/runs/{run_id}/step?id=none&attempt=0",
        f"/runs/{run_id}?page=x",
        "/runs?page=x",
        "/schedules?page=x",
        "/workers?page=x",
        "/runs?q=" + 3_000 * "x",
        "/runs?q=%3Dx",
        "/automations/none/input?source=a&id=b",
        "/automations/none",
        f"/schedules/{300 * 'x'}",
    ]
    for address in addresses:
        answer = space.http.get(
            f"{address}&namespace={space.name}" if "?" in address else f"{address}?namespace={space.name}"
        )
        said = html.unescape(re.sub(r"<[^>]+>", " ", answer.text.partition("<main")[2])).replace(3_000 * "x", "")
        assert re.findall(r"\b[a-z]+_[a-z_]+\b|\b\w+_id\b", said, re.IGNORECASE) == [], (address, said)
        assert answer.status_code < 500, address
    missing = space.http.get(f"/runs/{run_id}/step?id=none&namespace={space.name}").text
    assert "Look for a run that its caller named so" not in missing
