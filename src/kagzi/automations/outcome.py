"""What became of a consumer's mutation, as its `next` is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Outcome:
    """`applied`: it happened, with this result. `none`: nothing was to happen. `skipped`: a person said to go on
    without it.
    """

    status: Literal["applied", "none", "skipped"]
    result: Any = None

    @property
    def applied(self) -> bool:
        """Whether the mutation happened."""
        return self.status == "applied"

    @property
    def skipped(self) -> bool:
        """Whether a person said to go on without it."""
        return self.status == "skipped"
