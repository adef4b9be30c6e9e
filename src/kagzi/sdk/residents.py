"""Suspended runs that stay in the worker's memory, so that they go on there instead of being replayed. Nothing is held
for them: the server may give the run to anybody, and what was recorded since is not known here. So one is used only for
a delivery that says that nothing was, by the token it was suspended with. How many stay is bounded, and about how much
memory they take; who was suspended longest ago goes first, and its code is closed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.sdk.lease import Run

log = logging.getLogger("kagzi.worker")

# What all of them may weigh. A weight is an estimate from the bytes of input and results, which most of the memory of a
# run goes back to.
MOST_BYTES = 64 << 20


class Resident(Run, Protocol):
    """A run that can go on from memory."""

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        ...

    def resume(self, delivery: pb.Delivery, /) -> None:
        """It is this worker's again, and nothing was recorded since it was suspended."""
        ...


class Residents:
    """At most `most` runs, by id. Everything is called on the worker's loop."""

    def __init__(self, most: int, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        # In the order in which they were suspended, with their weights.
        self._kept: dict[str, tuple[Resident, int]] = {}
        self._bytes = 0
        self._evicted: list[pb.Held] = []

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def open(self) -> bool:
        """Whether a run that is suspended now may stay."""
        return self._most > 0

    def keep(self, run: Resident) -> None:
        """The run was suspended, and its suspension is on record. Whoever has been here longest makes room."""
        self._remove(run.run_id)
        weight = run.weight
        self._kept[run.run_id] = (run, weight)
        self._bytes += weight
        while self._kept and (len(self._kept) > self._most or self._bytes > self._most_bytes):
            self._evict(next(iter(self._kept)))

    def take(self, delivery: pb.Delivery) -> Resident | None:
        """The run of a delivery, if it can go on from memory; otherwise it is not here any more."""
        found = self._kept.get(delivery.run_id)
        if found is None:
            return None
        run, weight = found
        if run.token != delivery.last_token:
            self._remove(run.run_id)
            return None
        del self._kept[run.run_id]
        self._bytes -= weight
        return run

    def lose(self, gone: pb.Held) -> None:
        """Nobody will go on with the run under this token."""
        found = self._kept.get(gone.run_id)
        if found is not None and found[0].token == gone.claim_token:
            self._remove(gone.run_id)

    def held(self) -> list[pb.Held]:
        """All that are here, for a server that does not know. What was evicted before is no news to it."""
        self._evicted.clear()
        return [pb.Held(run_id=run.run_id, claim_token=run.token) for run, _ in self._kept.values()]

    def evicted(self) -> list[pb.Held]:
        """Those that the server believes to be here and are not; each once."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def close(self) -> None:
        """Nothing stays any more."""
        self._most = 0
        for run_id in list(self._kept):
            self._evict(run_id)

    def _evict(self, run_id: str) -> None:
        run, _ = self._kept[run_id]
        self._evicted.append(pb.Held(run_id=run_id, claim_token=run.token))
        self._remove(run_id)

    def _remove(self, run_id: str) -> None:
        run, weight = self._kept.pop(run_id, (None, 0))
        self._bytes -= weight
        if run is not None:
            # The code of another run may be what is running now, and none is closed inside of it.
            asyncio.get_running_loop().call_soon(close, run)


def close(run: Run) -> None:
    """Closes the code of a run that goes on elsewhere, whatever its cleanup does."""
    try:
        run.drop()
    except Exception:
        log.exception("run %s could not be closed in order", run.run_id)
