"""Whoever answers for automations: looks at those that are blocked, and where nobody knows whether a change happened,
looks into the outside's own books and says so. Anything else that blocks one is kept, for nothing else should.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from kagzi import Client
from kagzi.errors import KagziError
from tests.automations_sdk.visits import log_of

_EVERY = 0.5


class Person:
    """`attend` goes on until it is cancelled."""

    def __init__(self, client: Client, outside: str) -> None:
        self._client = client
        self._outside = outside
        self.answered = 0
        self.puzzled: dict[str, None] = {}

    async def attend(self) -> None:
        while True:
            # Whatever is broken just now is whole again soon.
            with suppress(KagziError):
                async for info in self._client.automations.list(status="BLOCKED"):
                    await self._answer(info.name)
            await asyncio.sleep(_EVERY)

    async def _answer(self, name: str) -> None:
        blocked = (await self._client.automations.get(name)).blocked
        if blocked is None:
            return
        if blocked.code != "INDETERMINATE" or blocked.mutation is None:
            self.puzzled[f"{name} is blocked: {blocked.code}: {blocked.message}"] = None
            return
        mutation = blocked.mutation
        if mutation.has_reconciler:
            self.puzzled[f"{name} is blocked although it has a reconciler: {blocked.message}"] = None
        key = mutation.idempotency_key
        made = [row for row in await asyncio.to_thread(log_of, self._outside, "row") if row["key"] == key]
        if made:
            await self._client.automations.resolve_mutation(name, mutation.mutation_id, "happened", made[0]["number"])
        else:
            await self._client.automations.resolve_mutation(name, mutation.mutation_id, "did_not")
        self.answered += 1
