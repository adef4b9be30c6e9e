"""The worker, as a run sees it: where its operations go, and what it may use."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Protocol

from google.protobuf.message import Message

from kagzi.protocol.v1.worker_pb2 import Answer
from kagzi.sdk.codec import Chain
from kagzi.sdk.definition import Workflow
from kagzi.sdk.lease import Run
from kagzi.sdk.residents import Residents

# A wait this short is waited for in place: giving the run back and claiming it again would take longer.
IN_PLACE_US = 2_000_000


class Host(Protocol):
    """What an execution needs of its worker. Everything is called on the worker's loop."""

    namespace: str
    codecs: Chain
    executor: Executor
    # Waits shorter than this are waited for in place; 0: every wait gives the run back, for a clock that tests move.
    in_place_us: int
    # Where suspended runs stay.
    residents: Residents
    # How many steps a run may have.
    most_steps: int

    def send(self, run: Run, name: str, body: Message, answered: Callable[[Answer | None], None] | None = None) -> None:
        """Sends an operation with the next frame, after those sent before. `answered` gets the answer, or None when
        it was plainly accepted.
        """
        ...

    def send_soon(self, run: Run, name: str, make: Callable[[], Message]) -> Callable[[], bool]:
        """Sends an operation with a frame that leaves anyway, or a little later; it is made when it leaves, which most
        do not. The answer withdraws it, and says whether it had not left.
        """
        ...

    def may_begin(self, run: Run) -> bool:
        """Whether the run's lease is young enough to begin a step."""
        ...

    def done(self, run: Run) -> None:
        """The run was given away, has ended, or was dropped."""
        ...

    def workflow(self, name: str) -> Workflow[Any, Any] | None:
        """A workflow of this worker."""
        ...
