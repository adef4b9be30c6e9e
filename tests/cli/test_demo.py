"""`make demo`, as somebody sees it who has just checked the project out, and `kagzi demo --json`, as a script does."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.docs.terminal import made

KAGZI = str(Path(sys.executable).parent / "kagzi")


def test_the_demo_kills_a_worker_and_shows_that_only_its_step_runs_again(tmp_path: Path) -> None:
    # Both at once, in one place: a demo mostly waits for a lease.
    with (
        _begun(*shlex.split(made("make demo")), at=tmp_path) as seen,
        _begun(KAGZI, "demo", "--json", at=tmp_path) as read,
    ):
        (shown, complaint), (document, notes) = (one.communicate(timeout=110) for one in (seen, read))
    assert seen.returncode == 0, shown + complaint
    said = " ".join(shown.split())
    assert "was killed (SIGKILL) while it ran 'pack'. Its lease is 3 s" in said
    assert "The order was fulfilled: parcel with 2 items, label-42" in said
    assert "ran again: pack" in said
    assert "What to try next: make dev" in said
    assert read.returncode == 0, notes
    told = json.loads(document)
    assert (told["ran_again"], len(told["ran_once"])) == (["pack"], 5)
    assert "was killed (SIGKILL)" in notes
    assert list(tmp_path.iterdir()) == []


def _begun(*command: str, at: Path) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KAGZI_")}
    return subprocess.Popen(
        command,
        cwd=at,
        env={**kept, "NO_COLOR": "1", "COLUMNS": "200", "TMPDIR": str(at)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
