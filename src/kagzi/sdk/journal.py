"""The logger of a run: every line carries the run's id, and nothing is said while the code repeats what it did."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kagzi.sdk.execution import Execution


class RunLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs as `kagzi.workflow.<type>`; silent in replay."""

    def __init__(self, run: Execution) -> None:
        logger = logging.getLogger(f"kagzi.workflow.{run.workflow_type}")
        super().__init__(logger, {"run_id": run.run_id, "workflow": run.workflow_type})
        self._run = run

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's name
        return not self._run.replaying and super().isEnabledFor(level)
