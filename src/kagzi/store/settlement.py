"""What the bad end of a handler run means for its automation: an error, a cancel, a terminate, a deadline or poison. It
is decided by the ledger's row, never by how far the run came, in the transaction that ends the run: nothing begun
outside is forgotten, and nothing is tried again that may have happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from asyncpg.connection import Connection

from kagzi.store import blocks, choice, rows, standings
from kagzi.store.blocks import Block
from kagzi.store.operation import Ended, Fault, Outcome
from kagzi.store.queries import Queries
from kagzi.store.rules import TRIES, pause
from kagzi.store.standings import Standing

_sql = Queries("settlement.sql")
_settle = _sql.bind("settle", columns=("not_before",))
_drop = _sql.bind("drop")
_give_up = _sql.bind("give_up")

_CODES: dict[Fault, str] = {
    "TRANSIENT": "RETRIES_USED_UP",
    "NEEDS_ATTENTION": "NEEDS_ATTENTION",
    "DEFECT": "DEFECT",
    "POISONED": "POISONED",
}


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done with the reservations of an ended run, by its ledger."""

    # They are given back, or become `ending`.
    releases: bool
    # The next run goes on from the ended one.
    continues: bool
    ending: str = "PENDING"
    # Its mutation can be checked by nobody any more.
    gives_up: bool = False


async def settle(connection: Connection, namespace: str, ended: Sequence[Ended], outcome: Outcome) -> None:
    """Settles handler runs that ended badly in this transaction. Locks their automations, and starts what is next."""
    names = [run.automation for run in ended if run.automation is not None]
    await standings.lock(connection, namespace, names)
    found = await standings.read(connection, namespace, [run.run_id for run in ended])
    known = [(run, found[run.run_id]) for run in ended if run.run_id in found]
    decisions = [decide(standing) for _, standing in known]
    blocked = [block for run, standing in known if (block := _block(run, standing)) is not None]
    doubts = [standing for (_, standing), decision in zip(known, decisions, strict=True) if decision.gives_up]
    await _ask_somebody(connection, namespace, doubts)
    await blocks.block(connection, namespace, blocked)
    stopped = {block.automation for block in blocked}
    written = await _settle.fetch(
        connection,
        namespace=namespace,
        run_ids=[run.run_id for run, _ in known],
        automations=[standing.automation for _, standing in known],
        handlers=[standing.handler for _, standing in known],
        releases=[decision.releases for decision in decisions],
        continues=[decision.continues for decision in decisions],
        endings=[decision.ending for decision in decisions],
        pauses=[_pause(standing, stopped) for _, standing in known],
        errors=[run.error for run, _ in known],
    )
    for row in written:
        outcome.rings(row["not_before"])
    await choice.begin(connection, namespace, [standing.automation for _, standing in known], outcome)


async def _ask_somebody(connection: Connection, namespace: str, doubts: Sequence[Standing]) -> None:
    """No code is left that could say what became of these mutations: a person has to."""
    if doubts:
        lost = [standing.mutation_id for standing in doubts]
        await _give_up.execute(connection, namespace=namespace, mutation_ids=lost)
        await blocks.block(connection, namespace, [blocks.indeterminate(standing) for standing in doubts])


async def drop_continuation(connection: Connection, namespace: str, automation: str, run_id: str) -> None:
    """Lets nothing wait for a run that is to be gone on from, if its handler is gone."""
    standing = (await standings.read(connection, namespace, [run_id])).get(run_id)
    if standing is not None and not standing.removed:
        return
    decision = Decision(releases=True, continues=False) if standing is None else decide(standing)
    await _drop.execute(
        connection,
        namespace=namespace,
        name=automation,
        run_id=run_id,
        releases=decision.releases,
        ending=decision.ending,
    )
    await _ask_somebody(connection, namespace, [standing] if standing is not None and decision.gives_up else [])


def decide(standing: Standing) -> Decision:
    """By the ledger: nothing begun, or proven not to have happened, is tried afresh; what happened, or may have, is
    gone on with. The handler of a run that is gone on with must still be there.
    """
    match standing.mutation_status:
        case None | "FAILED":
            return Decision(releases=True, continues=False, ending="SKIPPED" if standing.removed else "PENDING")
        case "INDETERMINATE":
            # A person's answer decides.
            return Decision(releases=False, continues=False)
        case "IN_FLIGHT" if standing.removed:
            return Decision(releases=False, continues=False, gives_up=True)
        case status if standing.removed:
            ending = "SKIPPED" if status == "SKIPPED" else "CONSUMED"
            return Decision(releases=True, continues=False, ending=ending)
    return Decision(releases=False, continues=True)


def _block(run: Ended, standing: Standing) -> Block | None:
    """Why the automation does not go on by itself; None if it does, after a pause."""
    if standing.removed or standing.mutation_status == "INDETERMINATE":
        return None
    if run.fault == "TRANSIENT" and standing.failures + 1 < TRIES:
        return None
    failure = rows.failure(run.error)
    said = "" if failure is None else f"{failure.type}: {failure.message}" if failure.type else failure.message
    return Block(standing.automation, _CODES[run.fault], said, standing.handler, run.run_id)


def _pause(standing: Standing, stopped: set[str]) -> timedelta | None:
    return None if standing.automation in stopped else pause(standing.failures + 1)
