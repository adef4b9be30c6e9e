"""What servers tell each other, over one connection of its own that listens and sends. It subscribes before
it looks: after every (re)connect each subscriber is told to look for itself. Sending is coalesced and off
the path of every commit; while the database is away notices are dropped, because nothing depends on them.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from itertools import islice

import asyncpg
import structlog
from asyncpg.connection import Connection

from kagzi import faults
from kagzi.server.lifecycle import Loop, Wakeup
from kagzi.store import notices
from kagzi.store.database import LOST
from kagzi.store.notices import Kind

log = structlog.get_logger(__name__)

# Called with the hash a notice carries; with None when anything may have been missed: look now.
Heard = Callable[[str | None], None]

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
# A dead peer is found out within this and the timeout of a command, rather than by TCP after hours.
_PING_EVERY = 10.0
# Notices of the same moment share a statement; a lone one goes at once.
_GAP = 0.02
_MOST_AT_ONCE = 1_000
_MOST_WAITING = 10_000


class Notifier(Loop):
    """Listens to the other servers and tells them. `connected` says whether it hears anything."""

    name = "notifier"

    def __init__(self, url: str) -> None:
        super().__init__()
        self.connected = asyncio.Event()
        self._url = url
        self._subscribers: defaultdict[Kind, list[Heard]] = defaultdict(list)
        self._waiting: dict[str, None] = {}
        self._wakeup = Wakeup()
        self._pid = 0

    def subscribe(self, kind: Kind, heard: Heard) -> Callable[[], None]:
        """Calls `heard` for every notice of this kind, on the event loop; the answer ends that."""
        self._subscribers[kind].append(heard)
        return lambda: self._subscribers[kind].remove(heard)

    def tell(self, kind: Kind, key: str) -> None:
        """Tells the subscribers of the other servers, soon. Never waits."""
        if self.connected.is_set() and len(self._waiting) < _MOST_WAITING:
            self._waiting[kind + key] = None
            self._wakeup.set()

    async def run(self) -> None:
        pause = _FIRST_PAUSE
        while not self.stopping.is_set():
            try:
                connection = await notices.listen(self._url, self._heard, self._wakeup.set)
            except (*LOST, asyncpg.PostgresError) as error:
                if pause == _FIRST_PAUSE:
                    log.warning("notifier_not_connected", error=type(error).__name__)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, _LONGEST_PAUSE)
                continue
            pause = _FIRST_PAUSE
            try:
                await self._converse(connection)
            except LOST as error:
                log.warning("notifier_lost_connection", error=type(error).__name__)
            finally:
                self.connected.clear()
                self._waiting.clear()
                connection.terminate()
            await asyncio.sleep(_FIRST_PAUSE)

    async def _converse(self, connection: Connection) -> None:
        self._pid = connection.get_server_pid()
        self.connected.set()
        for kind in Kind:
            self._call(kind, None)
        while not connection.is_closed() and not self.stopping.is_set():
            await self._wakeup.wait(_PING_EVERY)
            if not self._waiting:
                await notices.ping(connection)
                continue
            batch = list(islice(self._waiting, _MOST_AT_ONCE))
            for payload in batch:
                del self._waiting[payload]
            if faults.ON:
                faults.reach("notifier.send")
            await notices.send(connection, batch)
            await asyncio.sleep(_GAP)
            if self._waiting:
                self._wakeup.set()

    def _heard(self, pid: int, payload: str) -> None:
        # What this server sent: whoever told it here has told its own listeners without a detour.
        if pid == self._pid:
            return
        try:
            kind = Kind(payload[:1])
        except ValueError:
            # A newer server may speak of more.
            return
        self._call(kind, payload[1:] or None)

    def _call(self, kind: Kind, key: str | None) -> None:
        for heard in tuple(self._subscribers[kind]):
            try:
                heard(key)
            except Exception:
                log.exception("subscriber_failed", kind=kind.name)
