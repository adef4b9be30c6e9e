"""Workers that die by SIGKILL at one point of a consumer's run, each in a process of its own: forked from one that has
imported everything, so that fourteen deaths cost little more than one.

    python -m tests.automations_sdk.doom SERVER OUTSIDE
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import kagzi
from kagzi import (
    Absent,
    Applied,
    Automation,
    MutateContext,
    NextContext,
    Outcome,
    PrepareContext,
    Prepared,
    ProducerContext,
    Worker,
    mutation,
)
from kagzi.automations.mutation import Mutation
from kagzi.sdk.shift import Shift
from tests.automations_sdk.visits import visit

POINTS = (
    "in prepare",
    "before prepare is committed",
    "after prepare was committed",
    "after the intent is durable",
    "after the outside has changed",
    "in next",
    "after the end is durable",
)


def die() -> None:
    """As a machine does that loses its power."""
    os.kill(os.getpid(), signal.SIGKILL)


def name(point: str, reconciled: bool) -> str:
    return f"{point}{' with' if reconciled else ' without'} a reconciler"


def tool(called: str, reconciled: bool, outside: str) -> Mutation[[str], int]:
    """Adds a row. The outside adds whatever it is asked to: it knows no repeat."""

    @mutation
    async def append(event: str) -> int:
        added = await visit(outside, "POST", "/rows", {"key": kagzi.idempotency_key(), "of": called, "event": event})
        number: int = added["number"]
        return number

    if reconciled:

        @append.reconcile
        async def _(key: str, event: str) -> Applied | Absent:
            found = await visit(outside, "GET", f"/rows?key={key}")
            return Applied(found[0]["number"]) if found else Absent()

    return append


def automation(point: str, reconciled: bool, outside: str, doomed: bool = False) -> Automation:
    """One event, one row for it, and one more event that tells of the row."""
    made = Automation(name(point, reconciled))
    append = tool(made.name, reconciled, outside)

    @made.producer(every="1d", publishes="mail")
    async def poll(ctx: ProducerContext, state: int | None) -> int:
        if state is None:
            ctx.publish("mail", id="1", input=ctx.register_input("outside", "mail", "1"))
        return 1

    @made.consumer(subscribe="mail", publishes="row")
    class Add:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            found = await ctx.peek("mail", limit=1)
            if found and doomed and point == "in prepare":
                die()
            return Prepared(reserve={"mail": [event.id for event in found]})

        async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
            if doomed and point == "after prepare was committed":
                # While it computes, the intent is not there yet.
                await asyncio.Event().wait()
            await ctx.mutate(append, prepared.reserve["mail"][0])

        async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> None:
            if prepared.reserved and doomed and point == "in next":
                die()
            if outcome.applied:
                ctx.publish("row", id=str(outcome.result))

    @made.consumer(subscribe="row")
    class Tell:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            return Prepared(reserve={"row": [event.id for event in await ctx.peek("row")]})

    return made


class Doomed(Worker):
    """Dies when an operation of its consumer's run is about to leave, or has been answered."""

    point = ""

    def _begin(self) -> Shift:
        shift = super()._begin()
        send = shift.send
        wants = False

        def dying(run: Any, operation: str, body: Any, answered: Any = None) -> None:
            nonlocal wants
            if operation == "commit_prepare":
                wants = bool(body.prepared.reserve)
            here = self.point if wants else ""
            if (operation, here) in (
                ("commit_prepare", "before prepare is committed"),
                ("finish_mutation", "after the outside has changed"),
            ):
                die()

            def heard(answer: Any) -> None:
                if (operation, here) in (
                    ("commit_prepare", "after prepare was committed"),
                    ("begin_mutation", "after the intent is durable"),
                    ("commit_handler", "after the end is durable"),
                ):
                    die()
                if answered is not None:
                    answered(answer)

            send(run, operation, body, heard if answered is not None else None)

        shift.send = dying  # type: ignore[method-assign, assignment]
        return shift


def main(server: str, outside: str) -> int:
    """Forks the doomed; answers how many of them did not die as they should."""
    children = []
    for point in POINTS:
        for reconciled in (True, False):
            child = os.fork()
            if child == 0:
                worker = Doomed(server, automations=[automation(point, reconciled, outside, doomed=True)])
                worker.point = point
                asyncio.run(worker.run())
                os._exit(1)
            children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    return sum(not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL for status in statuses)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
