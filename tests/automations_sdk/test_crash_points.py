"""A worker dies at each of seven points of a consumer's run, with and without a reconciler. Judged by what the outside
has written down itself: every event changed it exactly once, and what nobody can know waits for a person.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kagzi import Client, Worker
from kagzi.sdk.automation_info import AutomationInfo
from kagzi.server.app import Server
from kagzi.server.settings import Settings
from tests.automations_sdk import doom
from tests.automations_sdk.visits import log_of, outside
from tests.database import Databases
from tests.house.tree import ROOT

# What nobody can know without a reconciler.
DOUBTFUL = ("after the intent is durable", "after the outside has changed")
CASES = [(point, reconciled) for point in doom.POINTS for reconciled in (True, False)]
LONG = 60.0


@dataclass(frozen=True, slots=True)
class Judged:
    """How each automation stood once nothing moved by itself, then after a person had answered, and the rows outside at
    both times.
    """

    before: dict[str, AutomationInfo]
    rows_before: Counter[str]
    after: dict[str, AutomationInfo]
    rows: Counter[str]


@pytest.fixture(scope="module")
def judged(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    url = databases.create()
    try:
        yield asyncio.run(play(url, tmp_path_factory.mktemp("outside") / "log"))
    finally:
        databases.drop(url)


async def play(database: str, log: Path) -> Judged:
    server = Server(
        Settings(server_port=0, worker_visibility_timeout_secs=2, worker_heartbeat_interval_secs=0.5), database
    )
    await server.start()
    try:
        with outside(log) as (address, _):
            await die(server.address, address)
            automations = [doom.automation(point, reconciled, address) for point, reconciled in CASES]
            async with Client(server.address) as client, Worker(server.address, automations=automations):
                before = await settled(server, client)
                rows_before = Counter(row["of"] for row in log_of(address, "row"))
                for info in before.values():
                    if info.blocked is not None and info.blocked.mutation is not None:
                        happened = rows_before[info.name] == 1
                        await client.automations.resolve_mutation(
                            info.name,
                            info.blocked.mutation.mutation_id,
                            "happened" if happened else "did_not",
                            7 if happened else None,
                        )
                after = await settled(server, client)
                return Judged(before, rows_before, after, Counter(row["of"] for row in log_of(address, "row")))
    finally:
        await server.stop(0)


async def die(server: str, address: str) -> None:
    """Everybody dies where they should."""
    command = (sys.executable, "-m", "tests.automations_sdk.doom", server, address)
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    async with asyncio.timeout(LONG):
        assert await process.wait() == 0


async def settled(server: Server, client: Client) -> dict[str, AutomationInfo]:
    """All automations, once each has nothing left to do or waits for a person. Backoff is not waited for."""
    async with asyncio.timeout(LONG):
        while True:
            found = {info.name: info async for info in client.automations.list()}
            if len(found) == len(CASES) and all(rests(info) for info in found.values()):
                return {name: await client.automations.get(name) for name in found}
            await over(server)
            await asyncio.sleep(0.05)


def rests(info: AutomationInfo) -> bool:
    return info.status == "BLOCKED" or (info.live_run is None and info.pending == 0)


async def over(server: Server) -> None:
    """The time of every backoff has come."""

    async def end(connection: object) -> None:
        await connection.execute(  # type: ignore[attr-defined]
            "update kagzi.handlers set not_before = kagzi.now() where not_before > kagzi.now()"
        )

    await server.database.transact(end, 5.0)
    server.alarm.look()


@pytest.mark.parametrize(("point", "reconciled"), CASES)
def test_the_outside_changes_once_whenever_the_worker_dies(point: str, reconciled: bool, judged: Judged) -> None:
    called = doom.name(point, reconciled)
    before, after = judged.before[called], judged.after[called]
    if point in DOUBTFUL and not reconciled:
        assert before.blocked is not None
        assert before.blocked.code == "INDETERMINATE"
        assert before.blocked.mutation is not None
        assert before.live_run is not None
        assert judged.rows_before[called] == (1 if point == "after the outside has changed" else 0)
    else:
        assert (before.status, judged.rows_before[called]) == ("ACTIVE", 1)
    assert (after.status, after.pending, after.live_run) == ("ACTIVE", 0, None)
    assert judged.rows[called] == 1
    told = {backlog.topic: backlog.reserved for backlog in after.backlog}
    assert told == {"mail": 0, "row": 0}
