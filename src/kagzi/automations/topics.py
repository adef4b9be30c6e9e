"""What `prepare` reads of its topics. The first pending events came along with the run: they are an answer for as long
as `prepare` has not waited for anything, each topic once. Whatever is asked later is asked of the server, because by
then more may have arrived. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kagzi.automations.events import Event, event_of
from kagzi.protocol.v1 import automation_pb2 as pb

if TYPE_CHECKING:
    from kagzi.automations.run import HandlerRun


class Topics:
    """The topics of a consumer, for one `prepare`."""

    def __init__(self, run: HandlerRun, brought: Sequence[pb.PeekedTopic] = ()) -> None:
        self._run = run
        self._brought = {each.topic: each for each in brought}

    def forget(self) -> None:
        """What came along is not the newest any more."""
        self._brought.clear()

    async def peek(self, topic: str, limit: int) -> list[Event]:
        """The oldest pending events of a topic; what does not fit into one frame comes in several."""
        brought = self._brought.pop(topic, None)
        if brought is not None and (len(brought.events) >= limit or not brought.next_cursor):
            return [self._event(event) for event in brought.events[:limit]]
        found: list[Event] = []
        cursor = ""
        while len(found) < limit:
            request = pb.PeekEvents(topic=topic, limit=limit - len(found), cursor=cursor)
            page = (await self._run.ask("peek_events", request)).peeked_events
            found += map(self._event, page.events)
            cursor = page.next_cursor
            if not cursor:
                break
        return found

    async def get(self, topic: str, ids: Sequence[str]) -> list[Event]:
        """Events by id, in that order."""
        found: dict[str, Event] = {}
        remaining = list(ids)
        while remaining:
            request = pb.GetEvents(topic=topic, event_ids=remaining)
            page = (await self._run.ask("get_events", request)).got_events
            found |= {event.event_id: self._event(event) for event in page.events}
            remaining = list(page.remaining)
        return [found[one] for one in ids if one in found]

    def _event(self, given: pb.HandlerEvent) -> Event:
        stored = given.payload if given.HasField("payload") else None
        return event_of(given, self._run.decode(stored, Any, "event"))
