"""`make demo`, as somebody sees it who has just checked the project out."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from tests.docs.terminal import made


def test_the_demo_kills_a_worker_and_shows_that_another_finishes(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KAGZI_")}
    played = subprocess.run(
        shlex.split(made("make demo")),
        cwd=tmp_path,
        env={**environment, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    said = " ".join(played.stdout.split())
    assert played.returncode == 0, played.stdout + played.stderr
    assert "was killed (SIGKILL) while it ran 'pack'. Its lease is 3 s" in said
    assert "The order was fulfilled: parcel with 2 items, label-42" in said
    assert "ran again: pack" in said
    assert "What to try next: make dev" in said
    assert list(tmp_path.iterdir()) == []
