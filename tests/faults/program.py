"""What the workers of an estate run: the journeys and ticks of other tests, patrols that are ended from outside,
purchases that change the outside, and two automations, one of which can find out what became of a change and one of
which cannot. The outside is a process of its own that adds whatever it is asked to.
"""

from __future__ import annotations

import asyncio
import os

import kagzi
from kagzi import Absent, Applied, Context, mutation, step, workflow
from tests.automations_sdk.swarm import OUTSIDE, append, swarming
from tests.automations_sdk.visits import visit
from tests.survival import effects
from tests.survival.program import errand, finish, journey, tick

__all__ = ["blind", "errand", "journey", "patrol", "purchase", "seeing", "tick"]

# A patrol that nobody ends takes some seconds.
_ROUNDS = 12
# Between a change and its record: long enough for a kill to fall into it now and then.
_AFTERWARDS = 0.15


@mutation
async def append_blindly(of: str, event: str) -> int:
    """A change of which nobody can find out whether it happened."""
    number: int = await append.function(of, event)
    await asyncio.sleep(_AFTERWARDS)
    return number


seeing = swarming("seeing")
blind = swarming("blind", append_blindly)


@workflow
async def patrol(ctx: Context, name: str) -> int:
    """Goes its rounds; whoever is cancelled on the way goes home first."""
    try:
        for number in range(1, _ROUNDS + 1):
            await ctx.step("round", finish, name)
            await ctx.set_state({"rounds": number})
            await ctx.sleep("rest", "300ms")
    except asyncio.CancelledError:
        await ctx.step("home", finish, name)
        raise
    return _ROUNDS


@step(effect=True)
async def charge(name: str) -> int:
    facts = {"key": kagzi.idempotency_key(), "of": "purchase", "event": name, "worker": os.environ[effects.WORKER]}
    number: int = (await visit(OUTSIDE, "POST", "/rows", facts))["number"]
    return number


@charge.reconcile
async def _(key: str, name: str) -> Applied | Absent:
    found = await visit(OUTSIDE, "GET", f"/rows?key={key}")
    return Applied(found[0]["number"]) if found else Absent()


@workflow
async def purchase(ctx: Context, name: str) -> int:
    """Changes the outside once, and answers with the number of the change."""
    return await ctx.step("charge", charge, name)
