"""What a lone run costs, counted on the wire and at the database: speed cannot rot unnoticed. The least of several runs
is judged, because a busy machine adds records of slow steps and the server's own duties to some of them.
"""

from __future__ import annotations

import re

from kagzi import Client, Context, Worker, step, workflow
from tests.server.wire import serving
from tests.survival.relay import Relay

RUNS = 8
STEPS = 3
# Writes of the engine's tables for runs; what looks after workers, charts and queues is no part of a run.
_FOR_RUNS = re.compile(
    r"\b(insert into|update|delete from) kagzi\.(workflow_runs|step_runs|workflow_payloads|signals)\b"
)


@step
async def small(number: int) -> int:
    return number


@workflow
async def three(ctx: Context, number: int) -> int:
    for _ in range(STEPS):
        number = await ctx.step("small", small, number)
    return number


async def test_a_lone_run_of_three_steps_costs_a_frame_and_a_statement_for_each_and_one_to_start(
    database_url: str,
) -> None:
    frames, commits, statements = [], [], []
    async with (
        serving(database_url, dispatcher_interval_secs=60, coordinator_interval_secs=600) as place,
        Relay(place.server.address) as relay,
        Worker(relay.address, workflows=[three]),
        Client(place.server.address) as client,
    ):
        await client.execute(three, 1)
        for _ in range(RUNS):
            await place.idle()
            relay.frames.clear()
            place.proxy.statements.clear()
            place.proxy.commits = 0
            assert await client.execute(three, 1) == 1
            frames.append(len(relay.frames))
            commits.append(place.proxy.commits)
            statements.append(sum(1 for text in place.proxy.statements if _FOR_RUNS.search(text)))
    # The last result shares a frame and a commit with the end.
    assert min(frames) == STEPS, frames
    assert min(commits) == STEPS + 1, commits
    assert min(statements) == STEPS + 1, statements
