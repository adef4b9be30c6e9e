"""The checker finds what is wrong when something is: it is shown a journey that went well, and then the same journey
with one thing changed at a time.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from kagzi import Client, Worker
from tests.sdk.serving import serving
from tests.survival import checker, effects
from tests.survival.checker import Told, Trouble
from tests.survival.effects import Entry
from tests.survival.program import Plan, errand, journey
from tests.survival.record import rows


@dataclasses.dataclass(slots=True)
class Evidence:
    """All that the checker is shown."""

    url: str
    told: Told
    entries: list[Entry]
    deaths: dict[str, tuple[int, int]]

    async def violations(self) -> list[str]:
        return (await checker.check(self.url, [self.told], self.entries, self.deaths)).violations

    def entry(self, step: str, what: str) -> Entry:
        return next(one for one in self.entries if (one.step, one.what) == (step, what))

    def ran_again(self, step: str, worker: str = "other") -> None:
        """As if its body had begun once more."""
        again = dataclasses.replace(
            self.entry(step, "begin"), at=self.entries[-1].at + 1, worker=worker, attempt=str(uuid.uuid4())
        )
        self.entries.append(again)


@pytest.fixture
async def evidence(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Evidence]:
    log = tmp_path / "effects.jsonl"
    monkeypatch.setenv(effects.FILE, str(log))
    monkeypatch.setenv(effects.WORKER, "first")
    async with (
        serving(database_url) as server,
        Worker(server.address, workflows=[journey, errand]),
        Client(server.address) as client,
    ):
        handle = await client.start(journey, Plan("well", rest="0s"), id="well")
        told = Told(handle.run_id, "well", [str(uuid.uuid4())])
        await handle.signal("word", "go", id=told.signals[0])
        told.result = msgspec.to_builtins(await handle.result(timeout=20))
        yield Evidence(database_url, told, effects.read(log), {})


async def test_a_journey_that_went_well_has_no_fault(evidence: Evidence) -> None:
    assert await evidence.violations() == []


async def test_a_step_that_ran_again_after_its_result_was_durable_is_found(evidence: Evidence) -> None:
    evidence.ran_again("prepare")
    assert any("is complete and ran again in other" in fault for fault in await evidence.violations())


async def test_what_a_worker_begins_across_a_standstill_is_counted_and_what_it_begins_later_is_found(
    evidence: Evidence,
) -> None:
    evidence.ran_again("prepare", "stopped")
    at, second = evidence.entries[-1].at, 1_000_000_000
    for worker, ends_in, violations, standstills in (
        ("stopped", 6, 0, 1),
        ("stopped", 2, 2, 0),
        ("another", 6, 2, 0),
    ):
        troubles = [Trouble(worker, at - 8 * second, at + ends_in * second)]
        found = await checker.check(evidence.url, [evidence.told], evidence.entries, {}, troubles, 6.0)
        assert (len(found.violations), found.standstills) == (violations, standstills)


async def test_a_step_that_ran_again_is_explained_by_nothing_but_the_death_of_its_worker(evidence: Evidence) -> None:
    lost = evidence.entry("finish", "begin")
    for what in ("begin", "effect"):
        entry = dataclasses.replace(lost, what=what, at=lost.at - 1, worker="killed", attempt="not on record")
        evidence.entries.append(entry)
    evidence.entries.sort(key=lambda entry: entry.at)
    assert any("while its worker lived" in fault for fault in await evidence.violations())
    evidence.deaths["killed"] = (lost.at - 1, lost.at)
    found = await checker.check(evidence.url, [evidence.told], evidence.entries, evidence.deaths)
    assert found.violations == []
    assert [repeat.worker for repeat in found.repeats] == ["killed"]


async def test_what_was_acknowledged_and_is_missing_is_found(evidence: Evidence) -> None:
    evidence.told.signals.append("lost")
    assert any("signal lost" in fault for fault in await evidence.violations())
    evidence.told.run_id = "never there"
    assert await evidence.violations() == ["the acknowledged start of never there is lost"]


async def test_a_result_that_is_not_the_one_on_record_is_found(evidence: Evidence) -> None:
    evidence.told.result = {"name": "another"}
    assert any("its client was told" in fault for fault in await evidence.violations())


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("update kagzi.step_runs set output = '\"x\"' where step_id = 'part#2'", "its body returned"),
        ("update kagzi.step_runs set output = '\"x\"' where step_id = 'word'", "reports word"),
        ("update kagzi.step_runs set status = 'RUNNING' where step_id = 'doomed' and not is_latest", "1 times, of 2"),
        ("update kagzi.step_runs set completed_seq = 1", "results in place 1"),
        ("update kagzi.signals set received_by = null", "was never received"),
        ("update kagzi.workflow_runs set parent_run_id = null", "asked for 1 children and has 0"),
        ("update kagzi.workflow_runs set status = 'FAILED' where parent_run_id is not null", "is FAILED"),
    ],
)
async def test_a_record_that_does_not_fit_is_found(evidence: Evidence, change: str, fault: str) -> None:
    await rows(evidence.url, change)
    assert any(fault in found for found in await evidence.violations())
