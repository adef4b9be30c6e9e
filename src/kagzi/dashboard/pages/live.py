"""Pages that stay current: the part of a page that can change is made again every second or two, and sent when it
differs from what the browser has. Looks that see the same share one making. Streams are bounded; a page without one is
current when it is reloaded.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.responses import Response, StreamingResponse

from kagzi.dashboard import wording
from kagzi.dashboard.pages.visit import Visit
from kagzi.dashboard.problems import Problem, document
from kagzi.sdk.errors import ServerError, Unauthorized

# The part of a page that can change, and for how many seconds it is good enough.
Made = tuple[str, float]
Make = Callable[[], Awaitable[Made]]

# What was made so long ago for another look is good enough for this one.
_FRESH_SECS = 0.9
# While the server does not answer there is no haste.
_AWAY_SECS = 3.0
# A proxy ends a connection on which nothing happens.
_SILENCE_SECS = 20.0
_STREAMS = 200


class Live:
    """The open streams of one site."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()
        self._streams = 0
        self._made: dict[tuple[str, ...], tuple[float, asyncio.Future[Made]]] = {}

    def stop(self) -> None:
        """Ends every stream."""
        self._stopping.set()

    def stream(self, visit: Visit, make: Make) -> Response:
        """Answers with the page, and again whenever it has changed."""
        if self._streams >= _STREAMS or self._stopping.is_set():
            return document(Problem("UNAVAILABLE", "too many pages are open: reload to see what is new"))
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._events(visit, make), 200, headers, "text/event-stream")

    async def _events(self, visit: Visit, make: Make) -> AsyncIterator[str]:
        self._streams += 1
        try:
            yield f"retry: {_AWAY_SECS * 1_000:.0f}\n\n"
            sent, at = "", time.monotonic()
            while not self._stopping.is_set():
                try:
                    page, pause = await self._shared(visit.key, make)
                except Problem as problem:
                    # The page itself said so before; it has nothing that could change.
                    yield _event("away", wording.spoken(problem.detail))
                    return
                except ServerError as error:
                    if isinstance(error, Unauthorized) and error.code == "UNAUTHORIZED":
                        yield _event("signin", "")
                        return
                    page, pause = "", _AWAY_SECS
                    yield _event("away", wording.spoken(error.message))
                if page and page != sent:
                    yield _event("page", page)
                    sent, at = page, time.monotonic()
                elif time.monotonic() - at > _SILENCE_SECS:
                    yield ": still here\n\n"
                    at = time.monotonic()
                await self._pause(pause)
        finally:
            self._streams -= 1
            if not self._streams:
                self._made.clear()

    async def _shared(self, key: tuple[str, ...], make: Make) -> Made:
        """What `make` answers, or answered a moment ago for somebody else."""
        now = time.monotonic()
        found = self._made.get(key)
        if found is None or now - found[0] > _FRESH_SECS:
            # Old ones go when new ones come: as many stay as there are different pages on show.
            self._made = {each: made for each, made in self._made.items() if now - made[0] < _AWAY_SECS}
            found = self._made[key] = (now, asyncio.ensure_future(make()))
        # One who leaves must not end it for the others.
        return await asyncio.shield(found[1])

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass


def _event(name: str, text: str) -> str:
    return f"event: {name}\ndata: {json.dumps(text)}\n\n"
