"""The keys that callers showed. A key is looked up when it is first shown and remembered by its hash; one statement
every two seconds asks for all of them whether they still hold. So a call costs no statement, and a key that is revoked
anywhere opens nothing here three seconds later: calls are refused and streams end. Secrets are never kept.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from kagzi.server.credential import OPERATOR, Credential, unauthorized
from kagzi.server.lifecycle import Loop
from kagzi.server.roles import Role
from kagzi.store import keys
from kagzi.store.database import Database
from kagzi.store.errors import Unreachable

log = structlog.get_logger(__name__)

_EVERY_SECS = 2.0
# What was not found to hold for so long, because the loop or the database was away, is looked up again when shown.
_FRESH_SECS = 10.0
# What nobody shows for so long is forgotten.
_IDLE_SECS = 300.0
# Look-ups under way: whoever guesses keys must not take every connection.
_LOOKUPS = 2


@dataclass(slots=True)
class _Known:
    credential: Credential
    checked_at: float
    shown_at: float


class Keyring(Loop):
    """The keys of the callers of this server. `admin_key` is the operator's own, which stands in no database."""

    name = "keyring"

    def __init__(self, database: Database, *, admin_key: str | None = None) -> None:
        super().__init__()
        self._database = database
        self._admin_digest = None if admin_key is None else keys.digest(admin_key)
        # By the hash of the secret: only keys that were found valid.
        self._known: dict[bytes, _Known] = {}
        # What ends with a key, by namespace and id.
        self._held: defaultdict[tuple[str, str], set[Callable[[], None]]] = defaultdict(set)
        self._lookups = asyncio.Semaphore(_LOOKUPS)

    async def credential(self, secret: str) -> Credential:
        """Who shows this secret. Refused with UNAUTHORIZED when it opens nothing."""
        hashed = keys.digest(secret)
        if self._admin_digest is not None and hmac.compare_digest(hashed, self._admin_digest):
            return OPERATOR
        now = time.monotonic()
        known = self._known.get(hashed)
        if known is not None and now - known.checked_at < _FRESH_SECS:
            known.shown_at = now
            return known.credential
        return await self._look_up(secret, hashed)

    async def _look_up(self, secret: str, hashed: bytes) -> Credential:
        async with self._lookups:
            # Counted from before the look: what is revoked during it is found by the next one.
            now = time.monotonic()
            key = await self._database.read(lambda c: keys.opened_by(c, secret))
        if key is None:
            self._known.pop(hashed, None)
            raise unauthorized("this key opens nothing here: it is wrong or was revoked. Ask an admin for another")
        found = Credential(key.namespace, key.key_id, Role[key.role.upper()])
        self._known[hashed] = _Known(found, now, now)
        return found

    def hold(self, credential: Credential, end: Callable[[], None]) -> Callable[[], None]:
        """Calls `end` once the key is revoked; the answer takes that back."""
        of = (credential.namespace, credential.key_id)
        if not credential.everywhere:
            self._held[of].add(end)

        def release() -> None:
            held = self._held.get(of)
            if held is not None:
                held.discard(end)
                if not held:
                    del self._held[of]

        return release

    def revoked(self, namespace: str, key_id: str) -> None:
        """The key ends here at once."""
        self._end({(namespace, key_id)})

    async def run(self) -> None:
        while not self.stopping.is_set():
            await self.pause(_EVERY_SECS)
            with suppress(Unreachable):
                await self.look()

    async def look(self) -> None:
        """Asks which of the keys in use still hold, and ends the others."""
        now = time.monotonic()
        for hashed in [hashed for hashed, known in self._known.items() if now - known.shown_at > _IDLE_SECS]:
            del self._known[hashed]
        asked = {(one.credential.namespace, one.credential.key_id) for one in self._known.values()} | self._held.keys()
        if not asked:
            return
        valid = await self._database.read(lambda c: keys.valid(c, asked), patience=_EVERY_SECS)
        self._end(asked - valid)
        for known in self._known.values():
            if (known.credential.namespace, known.credential.key_id) in valid:
                known.checked_at = max(known.checked_at, now)

    def _end(self, ended: Iterable[tuple[str, str]]) -> None:
        over = set(ended)
        for hashed, known in list(self._known.items()):
            if (known.credential.namespace, known.credential.key_id) in over:
                del self._known[hashed]
        for of in over:
            for end in list(self._held.get(of, ())):
                end()
            log.info("key_revoked", namespace=of[0], key_id=of[1])
