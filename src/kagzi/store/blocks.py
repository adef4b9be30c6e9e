"""Blocking and unblocking automations. A blocked one starts nothing: what blocked it stays visible with a message for
people until a person, or a new definition, settles it. The first reason stays; whoever calls holds the automation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asyncpg.connection import Connection

from kagzi.store.queries import Queries
from kagzi.store.standings import Standing

_sql = Queries("blocks.sql")
_block = _sql.bind("block")
_unblock = _sql.bind("unblock")


@dataclass(frozen=True, slots=True)
class Block:
    """Why an automation is to be blocked."""

    automation: str
    code: str
    message: str
    handler: str
    run_id: str
    mutation_id: str | None = None


async def block(connection: Connection, namespace: str, given: Sequence[Block]) -> None:
    """Blocks automations; one that is blocked keeps its reason."""
    if given:
        await _block.execute(
            connection,
            namespace=namespace,
            names=[one.automation for one in given],
            codes=[one.code for one in given],
            messages=[one.message for one in given],
            handlers=[one.handler for one in given],
            run_ids=[one.run_id for one in given],
            mutation_ids=[one.mutation_id for one in given],
        )


def indeterminate(standing: Standing) -> Block:
    """Nobody knows what became of the mutation that this run holds."""
    message = (
        f"nobody knows whether the mutation of {standing.handler} happened ({standing.title or 'no title'}): look "
        "outside, then say that it happened, that it didn't, to skip it, or to check again"
    )
    assert standing.mutation_id is not None
    return Block(standing.automation, "INDETERMINATE", message, standing.handler, standing.run_id, standing.mutation_id)


async def unblock(connection: Connection, namespace: str, automation: str) -> None:
    """Lets an automation go on."""
    await _unblock.execute(connection, namespace=namespace, name=automation)
