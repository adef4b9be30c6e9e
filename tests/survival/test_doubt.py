"""A worker is killed in the middle of an effect, or its body ends with an error that may mean anything. Nobody guesses
whether the effect happened: the reconciler is asked, and without one the run waits for a person.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import grpc

from kagzi import Client, Context, NotApplied, Retry, Worker, step, workflow
from kagzi.protocol.v1.common_pb2 import Payload
from kagzi.protocol.v1.workflow_pb2 import ResolveStepRequest
from kagzi.protocol.v1.workflow_pb2_grpc import WorkflowServiceStub
from tests.sdk.serving import serving
from tests.survival.crew import Crew
from tests.survival.load import until, until_async
from tests.survival.program import DOOMED, transferring
from tests.survival.record import rows
from tests.survival.station import Station

tries: list[str] = []


@step(effect=True, retry=Retry(max_attempts=3, initial="10ms"))
async def order(error: str) -> str:
    tries.append(error)
    if error == "doubtful":
        raise ConnectionError("no answer")
    if tries.count(error) < 3:
        raise NotApplied("refused before anything happened")
    return "ordered"


@workflow
async def ordering(ctx: Context, error: str) -> str:
    return await ctx.step("transfer", order, error)


async def waits_for_a_person(url: str, run_id: str) -> bool:
    query = (
        "select s.status, r.status, r.available_at = 'infinity' from kagzi.step_runs s "
        "join kagzi.workflow_runs r using (namespace, run_id) where run_id = $1"
    )
    return await rows(url, query, run_id) == [("UNKNOWN", "SLEEPING", True)]


async def resolve(address: str, run_id: str, result: bytes) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        request = ResolveStepRequest(
            run_id=run_id,
            step_id="transfer",
            resolution=ResolveStepRequest.APPLIED,
            result=Payload(data=result, encoding="json"),
        )
        await WorkflowServiceStub(channel).ResolveStep(request)


async def test_an_effect_whose_worker_was_killed_is_never_repeated_on_a_guess(
    database_url: str, tmp_path: Path
) -> None:
    with (
        Station(database_url, tmp_path / "server", worker_visibility_timeout_secs=1.5) as server,
        Crew(server.address, tmp_path) as crew,
    ):
        async with Client(server.address) as client:
            first = crew.hire(**{DOOMED: "1"})
            runs = {answer: await client.start(transferring, answer) for answer in ("applied", "absent", "")}
            await until(lambda: sum(entry.what == "effect" for entry in crew.entries()) == len(runs))
            crew.kill(first)
            second = crew.hire()
            assert await runs["applied"].result(timeout=30) == "found"
            again = await runs["absent"].result(timeout=30)
            await until_async(partial(waits_for_a_person, database_url, runs[""].run_id))
            await resolve(server.address, runs[""].run_id, b'"by hand"')
            assert await runs[""].result(timeout=30) == "by hand"
        effects = [entry for entry in crew.entries() if entry.what == "effect" and entry.worker == second.name]
        assert [(entry.run, entry.value) for entry in effects] == [(runs["absent"].run_id, again)]
        asked = {entry.run: entry.value for entry in crew.entries() if entry.what == "asked"}
        assert asked == {runs[name].run_id: f"{runs[name].run_id}/transfer" for name in ("applied", "absent")}


async def test_only_an_effect_that_says_not_applied_is_tried_again(database_url: str) -> None:
    async with (
        serving(database_url) as server,
        Worker(server.address, workflows=[ordering]),
        Client(server.address) as client,
    ):
        assert await client.execute(ordering, "not applied") == "ordered"
        handle = await client.start(ordering, "doubtful")
        await until_async(partial(waits_for_a_person, database_url, handle.run_id))
        await resolve(server.address, handle.run_id, b'"by hand"')
        assert await handle.result(timeout=30) == "by hand"
    assert tries == ["not applied"] * 3 + ["doubtful"]
