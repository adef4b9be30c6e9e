"""One client's watch: the runs it asked about, and the frames that wait to be sent to it. What waits is bounded: an end
that finds no room is not taken, and is offered again once the client has read.
"""

from __future__ import annotations

from kagzi.protocol.v1.common_pb2 import Failure, Payload
from kagzi.protocol.v1.workflow_pb2 import WatchWorkflowsResponse
from kagzi.server.lifecycle import Wakeup
from kagzi.store import rows

# A frame is cut here; an end that is larger travels alone.
_FRAME_BYTES = 1 << 20
# What may wait for a client that does not read.
_WAITING_BYTES = 8 << 20


class Watch:
    """The runs one stream watches. `asked` maps each id that was asked for to the run whose end is awaited."""

    __slots__ = ("_bytes", "_frame", "_frame_bytes", "_frames", "asked", "declined", "namespace", "ready")

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.asked: dict[str, str] = {}
        # Ids whose end found no room.
        self.declined: set[str] = set()
        self.ready = Wakeup()
        self._frames: list[WatchWorkflowsResponse] = []
        self._frame = WatchWorkflowsResponse()
        self._frame_bytes = 0
        self._bytes = 0

    def offer(
        self, asked_id: str, final_run_id: str, status: str, output: Payload | None, failure: Failure | None
    ) -> bool:
        """Takes the end of a run for the next frame, or answers False when too much waits already."""
        ended = WatchWorkflowsResponse.Ended(
            run_id=asked_id,
            final_run_id=final_run_id,
            status=rows.RUN_STATUS[status],
            output=output,
            failure=failure,
        )
        size = ended.ByteSize()
        if self._bytes and self._bytes + size > _WAITING_BYTES:
            self.declined.add(asked_id)
            return False
        if self._frame_bytes + size > _FRAME_BYTES:
            self._cut()
        self._frame.ended.append(ended)
        self._frame_bytes += size
        self._bytes += size
        self.ready.set()
        return True

    def unknown(self, asked_id: str) -> None:
        """There is no such run."""
        self._frame.unknown.append(asked_id)
        self.ready.set()

    def take(self) -> list[WatchWorkflowsResponse]:
        """The frames to send now."""
        self._cut()
        frames, self._frames = self._frames, []
        self._bytes = 0
        return frames

    def _cut(self) -> None:
        if self._frame.ended or self._frame.unknown:
            self._frames.append(self._frame)
            self._frame = WatchWorkflowsResponse()
            self._frame_bytes = 0
