"""What `docs/http.md` shows runs as it stands, and says of errors what the server says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import httpx
import pytest

from kagzi import Context, workflow
from kagzi.dashboard.problems import STATUSES
from tests.dashboard.place import Place
from tests.house.tree import ROOT

TEXT = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")


@workflow
async def approval(ctx: Context, request: dict[str, Any]) -> str:
    granted = await ctx.receive("approved", dict)
    return f"{request['what']}, by {granted['by'] if granted else 'nobody'}"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples are for curl")
def test_the_examples_run_in_their_order(place: Place) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) > 5
    script = "set -eu\n" + "\necho\n".join(blocks).replace("http://127.0.0.1:8080", place.url)
    space = place.space()
    space.name = "default"
    with space.worker(approval):
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a holiday, by Ada" in done.stdout
    assert '"code":"WAITS_SIGNAL"' in done.stdout or '"code":"RUNNING"' in done.stdout
    assert done.stdout.count('"local":') == 3


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
