"""Spans lead from whoever starts a run through the run to its steps and children; nobody who does not trace pays."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from kagzi import Client
from kagzi.sdk import tracing
from tests.sdk.serving import serving

PROGRAM = Path(__file__).with_name("traced.py")


async def _run(address: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), address, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, errors.decode()
    told: dict[str, Any] = json.loads(output)
    return told


async def test_one_trace_leads_from_the_request_to_every_step(database_url: str) -> None:
    async with serving(database_url) as server:
        told = await _run(server.address)
        async with Client(server.address) as client:
            runs = {run.type: run async for run in client.runs()}
    spans = told["spans"]
    assert len({span["trace"] for span in spans}) == 1
    by_id = {span["id"]: span for span in spans}
    parents = defaultdict(set)
    for span in spans:
        parents[span["name"]].add(None if span["parent"] is None else by_id[span["parent"]]["name"])
    assert parents["request"] == {None}
    assert parents["start parent"] == {"request"}
    assert parents["run parent"] == {"start parent"}
    assert parents["run child"] == {"run parent"}
    assert parents["step look"] == {"run parent", "run child"}
    assert parents["step flaky"] == {"run parent"}
    assert parents["inside"] == {"step look"}
    # Each body once, whatever was replayed; a sitting for each time the run was handed over.
    assert [span["status"] for span in spans if span["name"] == "step flaky"] == ["ERROR", "UNSET"]
    assert sum(span["name"] == "step look" for span in spans) == 2
    assert [span["attributes"]["kagzi.gave"] for span in spans if span["name"] == "run parent"][-1] == "complete"
    # The code sees its own labels alone, and no message of an error is in a span.
    assert told["labels"][:1] == ["customer"]
    assert set(told["labels"]) == {"customer"}
    assert "secret-in-a-message" not in json.dumps(spans)
    assert runs["parent"].labels["traceparent"].split("-")[1] == f"{spans[0]['trace']:032x}"


async def test_who_does_not_trace_leaves_no_mark(database_url: str) -> None:
    assert not tracing.active()
    async with serving(database_url) as server, Client(server.address) as client:
        handle = await client.start("anything")
        assert (await handle.describe()).labels == {}


def test_a_traceparent_is_known_by_its_form() -> None:
    assert tracing.well_formed("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    assert not tracing.well_formed("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7")
    assert not tracing.well_formed("nonsense")
