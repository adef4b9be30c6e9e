"""How much of a fault the tests here inject: enough to see every guard in `make check`, all that the design asks for in
`make faults`, which sets FAULTS=whole. SEED chooses the moments. What a test saw is appended to the file FIGURES, from
which the summary is made.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

WHOLE = os.environ.get("FAULTS") == "whole"
SEED = int(os.environ.get("SEED") or 20240607)


def scaled(little: T, whole: T) -> T:
    return whole if WHOLE else little


def figures(row: int, *, runs: int = 0, faults: int = 0, violations: int = 0, slowest: float = 0.0) -> None:
    """Keeps what a test saw, for the summary, and prints it for whoever reads the test's output."""
    seen = {"row": row, "runs": runs, "faults": faults, "violations": violations, "slowest": round(slowest, 2)}
    print(f"\n{json.dumps(seen)}")  # noqa: T201
    path = os.environ.get("FIGURES")
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(seen) + "\n")
