"""What `docs/http.md` shows runs as it stands, and says of errors what the server says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from kagzi import Context, workflow
from kagzi.dashboard.api.table import ROUTES
from kagzi.dashboard.problems import STATUSES
from tests.dashboard.place import Place
from tests.dashboard.workflows import pay, payouts
from tests.house.tree import ROOT

TEXT = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")


SHELL = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)


@workflow
async def approval(ctx: Context, request: dict[str, Any]) -> str:
    granted = await ctx.receive("approved", dict)
    return f"{request['what']}, by {granted['by'] if granted else 'nobody'}"


@workflow
async def payment(ctx: Context, cents: int) -> str:
    return await ctx.step("pay", pay, cents)


@pytest.mark.timeout(200)
@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples are for curl")
def test_the_examples_run_in_their_order(place: Place, tmp_path: Path) -> None:
    script = "set -euo pipefail\n" + "\necho\n".join(SHELL).replace("http://127.0.0.1:8080", place.url)
    # What is refused ends the script, and says why.
    (tmp_path / ".curlrc").write_text("fail-with-body\n", encoding="utf-8")
    space = place.space()
    space.name = "default"
    with space.worker(approval, payment, automations=[payouts]):
        done = subprocess.run(
            ["bash", "-xc", script],
            env={**os.environ, "CURL_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    for said in ("a holiday, by Ada", "receipt-7", '"READER"', '"total":5', "2027-03-26T17:00:00+01:00"):
        assert said in done.stdout
    assert "2027-04-02T17:00:00+02:00" in done.stdout


def test_every_route_has_its_example() -> None:
    shown = re.findall(r'^[^#\n]*?curl -s "?\$API([^\s"?]*)(.*(?:\n(?: |\}).*)*)', "\n".join(SHELL), re.MULTILINE)
    tried = {(_verb(rest), re.sub(r"\$\w+", "one", path)) for path, rest in shown}
    wanted = [("GET", "/runs/{run_id}/result"), *((route.verb, route.path) for route in ROUTES)]
    assert len(tried) > 50
    assert [(verb, path) for verb, path in wanted if not any(_fits(verb, path, one) for one in tried)] == []
    assert [one for one in tried if not any(_fits(verb, path, one) for verb, path in wanted)] == []


def _verb(rest: str) -> str:
    named = re.search(r"-X (\w+)", rest)
    return named[1] if named else "POST" if " -d " in rest else "GET"


def _fits(verb: str, path: str, tried: tuple[str, str]) -> bool:
    pattern = re.sub(r"\{\w+(?::path)?\}", "[^/]+", path)
    return verb == tried[0] and re.fullmatch(pattern, tried[1]) is not None


def test_the_error_shown_is_the_one_told(place: Place) -> None:
    [shown] = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    answer = httpx.post(f"{place.url}/api/v1/runs", json={})
    assert answer.json() == json.loads(shown)


def test_every_code_stands_beside_its_status() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \| (.+) \|$", TEXT, re.MULTILINE)
    told = {code: statuses for statuses, codes in rows for code in re.findall(r"[A-Z_]{5,}", codes)}
    for code, status in STATUSES.items():
        if code != "UNIMPLEMENTED":
            assert str(int(status)) in told[code], code
