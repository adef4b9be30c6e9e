"""Every name of Context: when it is first used, when it is replayed after SIGKILL, inside `gather`, and in the cleanup
of a cancelled run. The scenes are played all at once: one worker is killed in the middle of all of them, and this
process finishes them.
"""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kagzi import Handle, RunCancelled
from tests.database import Databases
from tests.sdk import scenes
from tests.sdk.rig import LONG, Marks, Rig, doomed, rigged

# A slot of the schedules that start the runs of one scene.
SLOT = datetime(2024, 2, 29, tzinfo=UTC)
NAMES = [scene.__name__ for scene in scenes.SCENES]


@dataclass
class Played:
    """What became of the runs: of each its result, its steps and its last state; and what was marked outside."""

    run_ids: dict[str, str] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    records: dict[str, dict[str, str]] = field(default_factory=dict)
    states: dict[str, Any] = field(default_factory=dict)
    marks: list[Any] = field(default_factory=list)
    # What each workflow said in this process.
    lines: dict[str, list[str]] = field(default_factory=dict)
    # Timers, and those of them that were over before their time.
    timers: tuple[int, int] = (0, 0)

    def seen(self, name: str, kind: str = "saw") -> list[Any]:
        """What the run had seen, each time it marked it."""
        return [value for what, run_id, value in self.marks if what == kind and run_id == self.run_ids[name]]


class _Lines(logging.Handler):
    def __init__(self, lines: dict[str, list[str]]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.setdefault(record.name.rpartition(".")[2], []).append(record.getMessage())


@contextlib.contextmanager
def _listening(played: Played) -> Iterator[None]:
    """Keeps what workflows say in this process."""
    logger = logging.getLogger("kagzi.workflow")
    handler = _Lines(played.lines)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Marks]:
    made = Marks(tmp_path_factory.mktemp("scenes") / "marks")
    os.environ.update(made.environment)
    yield made
    del os.environ[Marks.VARIABLE]


@pytest.fixture(scope="module")
def crashed(databases: Databases, marks: Marks) -> Iterator[Played]:
    """All scenes, alone and gathered, whose worker was killed in the middle."""
    url = databases.create()
    yield asyncio.run(_crash(url, marks))
    databases.drop(url)


@pytest.fixture(scope="module")
def cancelled(databases: Databases, marks: Marks) -> Iterator[Played]:
    """All scenes as the cleanup of a cancelled run."""
    url = databases.create()
    yield asyncio.run(_cancel(url, marks))
    databases.drop(url)


async def _crash(url: str, marks: Marks) -> Played:
    played = Played()
    plays = [play for name, play in scenes.PLAYS.items() if not name.endswith("_cancelled")]
    async with rigged(url, lease=2.0) as rig:
        with doomed(rig, "tests.sdk.scenes", **{scenes.DOOMED: "1"}) as worker:
            handles = {play.name: await _start(rig, play) for play in [*plays, scenes.logged]}
            for continued in (scenes.continued, scenes.continued_gathered):
                handles[continued.name] = await rig.client.start(continued, [])
            left = {f"hangs {handle.run_id}" for handle in handles.values()}
            left |= {f"marks {handles[play.name].run_id}" for play in plays}
            while left:
                left.discard(await worker.says(""))
            # The record that a step was reached leaves a little later than its body begins.
            await rig.until(
                "select 1 from kagzi.step_runs where run_id = any ($1) and step_id in ('once', 'mark', 'hang') "
                "having count(*) = 6",
                [handles[name].run_id for name in ("logged", "logger_alone", "logger_gathered")],
            )
            worker.kill()
        others = (scenes.kid, scenes.continued, scenes.continued_gathered, scenes.logged)
        with _listening(played):
            async with rig.working(*plays, *others):
                await _finish(rig, handles, played)
        (row,) = await rig.fetch(
            "select count(*) as all, count(*) filter (where finished_at < wake_at) as early from kagzi.step_runs "
            "where kind = 'SLEEP' and status = 'COMPLETED'"
        )
        played.timers = (row["all"], row["early"])
    played.marks = [json.loads(line) for line in marks.read()]
    return played


async def _cancel(url: str, marks: Marks) -> Played:
    played = Played()
    plays = [play for name, play in scenes.PLAYS.items() if name.endswith("_cancelled")]
    with _listening(played):
        await _cancel_all(url, plays, played)
    played.marks = [json.loads(line) for line in marks.read()]
    return played


async def _cancel_all(url: str, plays: list[Any], played: Played) -> None:
    async with rigged(url) as rig, rig.working(*plays, scenes.kid, scenes.continued_cancelled):
        scenes.ready = type(scenes.ready)()
        handles = {play.name: await _start(rig, play) for play in plays}
        handles["continued_cancelled"] = await rig.client.start(scenes.continued_cancelled, [])
        for _ in handles:
            await scenes.ready.arrival()
        await asyncio.gather(*(handle.cancel("enough") for handle in handles.values()))
        await _finish(rig, handles, played)


async def _start(rig: Rig, play: Any) -> Handle[Any]:
    handle: Handle[Any]
    if play.name.startswith("scheduled_for"):
        schedule = await rig.client.schedules.create(play.name, play, cron="0 0 * * *", paused=True)
        (slot,) = (await schedule.backfill(SLOT, SLOT + timedelta(hours=1))).runs.values()
        assert slot is not None
        handle = rig.client.handle(slot, play)
    else:
        handle = await rig.client.start(play, labels={"scene": play.name})
    for colour in scenes.SIGNALS:
        await handle.signal("colour", colour)
    return handle


async def _finish(rig: Rig, handles: dict[str, Handle[Any]], played: Played) -> None:
    for name, handle in handles.items():
        played.run_ids[name] = handle.run_id
        try:
            played.results[name] = await handle.result(timeout=LONG)
        except RunCancelled as error:
            played.results[name] = error
        played.records[name] = await rig.records(handle)
        played.states[name] = await handle.state()


@pytest.mark.parametrize("name", NAMES)
def test_what_the_code_saw_before_its_worker_was_killed_it_sees_again(crashed: Played, name: str) -> None:
    before, _after = crashed.results[f"{name}_alone"]

    assert crashed.seen(f"{name}_alone") == [before]


@pytest.mark.parametrize("name", NAMES)
def test_what_the_code_saw_inside_gather_it_sees_again(crashed: Played, name: str) -> None:
    before, _after = crashed.results[f"{name}_gathered"]
    seen = crashed.seen(f"{name}_gathered")

    assert seen
    assert all(value == before for value in seen)


@pytest.mark.parametrize("name", NAMES)
def test_a_cancelled_run_can_use_it_in_its_cleanup(cancelled: Played, name: str) -> None:
    error = cancelled.results[f"{name}_cancelled"]
    records = cancelled.records[f"{name}_cancelled"]

    assert isinstance(error, RunCancelled)
    assert error.reason == "enough"
    assert len(cancelled.seen(f"{name}_cancelled", "cleaned")) == 1
    assert records["long"] == "ABANDONED"
    assert records["mark"] == "COMPLETED"


def test_a_step_runs_once_whatever_happens_to_its_worker(crashed: Played) -> None:
    assert crashed.results["step_alone"] == [1, 1]
    assert crashed.results["step_gathered"] == [[1, 1], [1, 1]]


def test_a_timer_is_over_once(crashed: Played) -> None:
    assert crashed.records["sleep_alone"] == {
        "before": "COMPLETED",
        "mark": "COMPLETED",
        "hang": "COMPLETED",
        "after": "COMPLETED",
    }
    assert crashed.results["sleep_until_gathered"] == [[True, True], [True, True]]


def test_no_timer_is_over_before_its_time(crashed: Played) -> None:
    total, early = crashed.timers

    assert total > 10
    assert early == 0


def test_signals_are_received_in_their_order_each_once(crashed: Played, cancelled: Played) -> None:
    assert crashed.results["receive_alone"] == ["red", "green"]
    assert crashed.results["receive_gathered"] == [["red", "green"], ["blue", "white"]]
    assert cancelled.seen("receive_cancelled", "cleaned") == ["red"]


def test_waiting_for_a_signal_that_does_not_come_ends_with_none(crashed: Played) -> None:
    assert crashed.results["receive_timeout_alone"] == [None, None]


def test_a_child_is_started_once(crashed: Played) -> None:
    before, after = crashed.results["run_child_alone"]
    assert before[0] == "before"
    assert after[0] == "after"
    assert before[1] != after[1]

    (run_id, (tag, same_id)), _ = crashed.results["start_child_alone"]
    assert tag == "before"
    assert run_id == same_id


def test_select_drops_what_it_does_not_take(crashed: Played) -> None:
    assert crashed.results["select_alone"] == [["soon", 1], ["soon", 1]]
    assert crashed.records["select_alone"]["before-late"] == "ABANDONED"
    assert crashed.records["select_alone"]["after-late"] == "ABANDONED"


def test_time_moves_on(crashed: Played) -> None:
    before, after = (datetime.fromisoformat(text) for text in crashed.results["now_alone"])

    assert timedelta(0) < after - before < timedelta(minutes=2)


def test_random_numbers_and_ids_are_new_each_time_they_are_asked_for(crashed: Played) -> None:
    for name in ("uuid", "random"):
        (left, right), (third, fourth) = crashed.results[f"{name}_gathered"]
        assert len({left, right, third, fourth}) == 4


def test_the_last_document_is_the_state(crashed: Played, cancelled: Played) -> None:
    assert crashed.states["set_state_alone"] == {"tag": "after"}
    assert crashed.states["set_state_gathered"] == {"tag": "again"}
    assert cancelled.states["set_state_cancelled"] == {"tag": "cleanup"}


def test_new_runs_take_the_path_of_a_patch(crashed: Played) -> None:
    assert crashed.results["patched_alone"] == [[True, True], [True, True]]


def test_the_facts_of_a_run(crashed: Played) -> None:
    run_id = crashed.run_ids["facts_alone"]
    facts = [run_id, "facts_alone", "default", 1, None, {"scene": "facts_alone"}]

    assert crashed.results["facts_alone"] == [facts, facts]


def test_a_run_that_continues_as_new_is_one_run_for_who_waits(crashed: Played) -> None:
    rounds = crashed.results["continued"]

    assert rounds[0] == crashed.run_ids["continued"]
    assert len(set(rounds)) == 4


def test_a_branch_continues_its_run_as_new_and_the_others_clean_up(crashed: Played) -> None:
    rounds = crashed.results["continued_gathered"]

    assert rounds[0] == crashed.run_ids["continued_gathered"]
    assert len(set(rounds)) == 4
    assert [
        [value for kind, run_id, value in crashed.marks if kind == "undone" and run_id == each] for each in rounds
    ] == [[0], [1], [2], []]


def test_a_cancelled_run_that_continues_as_new_is_cancelled_there(cancelled: Played) -> None:
    error = cancelled.results["continued_cancelled"]
    (last,) = cancelled.seen("continued_cancelled", "cleaned")

    assert isinstance(error, RunCancelled)
    assert error.reason == "enough"
    assert error.run_id == last != cancelled.run_ids["continued_cancelled"]


def test_a_run_knows_the_slot_that_it_was_scheduled_for(crashed: Played, cancelled: Played) -> None:
    slot = SLOT.isoformat()

    assert crashed.results["scheduled_for_alone"] == [slot, slot]
    assert crashed.results["scheduled_for_gathered"] == [[slot, slot], [slot, slot]]
    assert cancelled.seen("scheduled_for_cancelled", "cleaned") == [slot]


def test_the_logger_is_silent_in_replay(crashed: Played, cancelled: Played) -> None:
    assert crashed.lines["logged"] == ["after the crash"]
    alone, gathered = crashed.run_ids["logger_alone"], crashed.run_ids["logger_gathered"]
    assert crashed.results["logger_alone"] == [alone, alone]
    assert crashed.lines["logger_alone"] == [f"after of {alone}"]
    assert crashed.lines["logger_gathered"] == [f"after of {gathered}", f"again of {gathered}"]
    assert cancelled.lines["logger_cancelled"] == [f"cleanup of {cancelled.run_ids['logger_cancelled']}"]
