"""What was told of runs that no worker of this server held: one of them may be on its way here, claimed before the news
and delivered after it. A short memory of this process; what falls out of it comes with the next heartbeat.
"""

from __future__ import annotations

import time
from collections import OrderedDict

# A claim is given up after this, and a run that it brings was read by then.
_SECS = 10.0
_MOST = 10_000


class Missed:
    """Remembers, by the hash of their notices, runs that something arrived for."""

    def __init__(self) -> None:
        self._at: OrderedDict[str, float] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._at)

    def note(self, key: str) -> None:
        """Something arrived for a run with this key, and nobody here holds it."""
        self._at[key] = time.monotonic()
        self._at.move_to_end(key)
        if len(self._at) > _MOST:
            self._at.popitem(last=False)

    def takes(self, key: str) -> bool:
        """Whether something arrived for the run with this key a moment ago; once."""
        return time.monotonic() - self._at.pop(key, float("-inf")) < _SECS
