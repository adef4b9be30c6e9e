"""The database's clock, as far as this process knows it. Leases, timers and deadlines are decided in SQL; this only
says how long to wait before looking again. It is never asked whether something is due.
"""

from __future__ import annotations

import time
from datetime import datetime


class DatabaseClock:
    """Follows the database's time by the last reading of it."""

    __slots__ = ("_ahead",)

    def __init__(self) -> None:
        # Seconds from this process's monotonic clock to the database's time.
        self._ahead = time.time() - time.monotonic()

    def observe(self, now: datetime) -> None:
        """The database has just said what time it is."""
        self._ahead = now.timestamp() - time.monotonic()

    def until(self, moment: datetime) -> float:
        """Seconds until the database's clock shows `moment`; negative when it has."""
        return moment.timestamp() - self._ahead - time.monotonic()
