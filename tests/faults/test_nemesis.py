"""Every kind of fault there is, one after the other in an order that a seed chooses, over servers, workers, clients, a
database and the wires between them: nothing acknowledged is lost, nothing is repeated without a reason, each slot of a
schedule fires once, and the work always goes on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kagzi.embedded import Embedded
from tests.faults.campaign import wage
from tests.faults.scale import SEED, figures, scaled


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_row_00_whatever_happens_in_any_order_no_guarantee_breaks(postgres: Embedded, tmp_path: Path) -> None:
    summary = await wage(postgres, tmp_path, SEED, faults=scaled(6, 40))
    print(f"\n{summary}")  # noqa: T201
    figures(
        0,
        runs=summary.runs,
        faults=summary.faults,
        violations=len(summary.violations),
        slowest=summary.slowest[0],
    )
    assert summary.violations == []
    assert summary.runs > 0
