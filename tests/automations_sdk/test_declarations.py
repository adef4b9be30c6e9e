"""What a declaration says to a server: names, kinds, topics, times, and a hash that changes with the code."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kagzi import Automation, Prepared, mutation
from kagzi.automations import mutation as mutations
from kagzi.automations import parameters, prepared
from kagzi.automations.events import Publications
from kagzi.automations.fingerprint import fingerprint
from kagzi.errors import ConfigError, PayloadError
from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1.common_pb2 import Payload
from tests.automations_sdk.declared import append_row, inbox


def test_the_definition_says_all_that_the_server_has_to_know() -> None:
    definition = inbox().definition("slow")
    poll, add_row, tell = definition.handlers
    assert (definition.name, definition.task_queue) == ("email-to-sheets", "slow")
    assert (poll.name, poll.kind, poll.timing.every_ms, list(poll.publishes)) == (
        "poll",
        pb.HANDLER_PRODUCER,
        300_000,
        ["email.received"],
    )
    assert (add_row.name, add_row.kind, add_row.mutates) == ("AddRow", pb.HANDLER_CONSUMER, True)
    assert (list(add_row.subscribes), list(add_row.publishes)) == (["email.received"], ["row.created"])
    assert not tell.mutates


def test_words_are_deployed_as_what_they_mean() -> None:
    async def poll(ctx: Any, state: Any) -> None: ...

    automation = Automation("x")
    automation.producer(text="every 90 minutes", publishes="t")(poll)
    automation.producer(cron="0 9 * * *", timezone="Europe/Berlin", publishes="t", name="daily")(poll)
    automation.producer(text="every day at 9am Asia/Tokyo", publishes="t", name="there")(poll)
    often, daily, there = automation.definition("default").handlers
    assert often.timing.every_ms == 5_400_000
    assert (daily.timing.cron, daily.timezone) == ("0 9 * * *", "Europe/Berlin")
    assert (there.timing.cron, there.timezone) == ("0 9 * * *", "Asia/Tokyo")


def test_the_hash_is_the_same_for_the_same_code_and_another_for_another_declaration() -> None:
    assert inbox().definition_hash == inbox().definition_hash
    more = inbox()
    before = more.definition_hash
    more.consumer(subscribe="row.created", name="again")(type("Again", (), {"prepare": None}))
    assert more.definition_hash != before


def test_the_hash_is_the_same_in_every_process_and_changes_with_the_module(tmp_path: Path) -> None:
    module = tmp_path / "declares.py"
    program = "import sys; sys.path.insert(0, sys.argv[1]); import declares; print(declares.a.definition_hash)"

    def hashed(line: str) -> str:
        module.write_text(
            "from kagzi import Automation, Prepared\n"
            f"def limit(): return {line}\n"
            "a = Automation('a', accepts='t')\n"
            "@a.consumer(subscribe='t')\n"
            "class C:\n    async def prepare(self, ctx, state): return Prepared()\n"
        )
        command = [sys.executable, "-B", "-c", program, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert hashed("1") == hashed("1")
    assert hashed("1") != hashed("2")


def test_code_without_a_source_has_a_hash_too() -> None:
    def made(constant: int) -> Any:
        names: dict[str, Any] = {}
        exec(f"def f():\n    def g(): return {constant}\n    return g", names)  # noqa: S102 - code of no file
        return names["f"]

    assert fingerprint([], [made(1)]) == fingerprint([], [made(1)])
    assert fingerprint([], [made(1)]) != fingerprint([], [made(2)])


@dataclass
class Row:
    who: str
    at: datetime
    key: UUID


@mutation
async def keep(sheet: str, row: Row, *more: int, bold: bool = False, **styles: str) -> None: ...


def test_a_mutation_gets_its_arguments_back_as_they_were() -> None:
    row = Row("Ann", datetime(2030, 1, 2, tzinfo=UTC), UUID(int=7))
    data = parameters.encode(keep.function, ("reports", row, 1, 2), {"bold": True, "color": "red"})
    arguments, keywords = parameters.decode(keep.function, data)
    assert arguments == ("reports", row, 1, 2)
    assert keywords == {"bold": True, "color": "red"}


def test_arguments_that_do_not_fit_are_refused_before_anything_is_recorded() -> None:
    with pytest.raises(ConfigError, match="'keep' cannot be called so"):
        parameters.encode(keep.function, (), {})
    with pytest.raises(PayloadError, match="Cannot encode"):
        parameters.encode(keep.function, ("reports", object()), {})


def test_a_parameter_that_is_gone_is_named() -> None:
    data = parameters.encode(keep.function, ("reports", Row("Ann", datetime.now(UTC), UUID(int=1))), {})

    async def less(sheet: str) -> None: ...

    with pytest.raises(PayloadError, match="takes no such parameter any more"):
        parameters.decode(less, data)


def test_a_mutation_is_the_one_that_the_handler_refers_to() -> None:
    def made() -> tuple[Any, Any]:
        @mutation
        async def send() -> None: ...

        async def mutate(ctx: Any) -> None:
            await ctx.mutate(send)

        return send, mutate

    (one, first), (two, second) = made(), made()
    assert mutations.find("send", first) is one
    assert mutations.find("send", second) is two


def test_a_mutation_is_found_by_the_name_that_is_nearest_to_its_handler() -> None:
    @mutation(name="append_row")
    async def other() -> None: ...

    class Near:
        async def mutate(self) -> None: ...

    assert mutations.find("append_row", Near.mutate) is other
    assert mutations.find("append_row", append_row.function) is append_row
    assert mutations.find("nobody", Near.mutate) is None


def test_of_two_mutations_as_near_none_is_asked() -> None:
    @mutation(name="twin")
    async def one() -> None: ...

    @mutation(name="twin")
    async def two() -> None: ...

    with pytest.raises(ConfigError, match="Two mutations are called 'twin'"):
        mutations.find("twin", append_row.function)
    assert one is not two


def test_a_mutation_has_one_reconciler() -> None:
    with pytest.raises(ConfigError, match="has a reconciler already"):
        append_row.reconcile(print)


def test_what_is_published_twice_is_published_once_as_it_was_last() -> None:
    publications = Publications()
    first, last = Payload(data=b"1"), Payload(data=b"2")
    publications.publish(["a", "b"], "7", first, None)
    publications.publish(["b"], "7", last, None)
    events = {tuple(event.topics): event.payload.data for event in publications.events()}
    assert events == {("a",): b"1", ("b",): b"2"}


BERLIN = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    "given",
    [datetime(2030, 1, 2, 9, tzinfo=UTC), datetime(2030, 1, 2, 10, tzinfo=BERLIN), "2030-01-02T09:00:00Z"],
)
def test_wake_at_takes_a_time_with_its_zone(given: Any) -> None:
    checked = prepared.checked(Prepared(wake_at=given), "Digest", ["t"])
    assert checked.wake_at == datetime(2030, 1, 2, 9, tzinfo=UTC)
    assert prepared.to_wire(checked, None).wake_at.ToDatetime(UTC) == datetime(2030, 1, 2, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    "given",
    [
        "tomorrow",
        1_900_000_000,
        datetime(2030, 1, 2),  # noqa: DTZ001 - that it has no zone is the point
        "2030-01-02",
        "2030-01-02T09:00:00",
        timedelta(1),
        "9999-01-01T00Z",
    ],
)
def test_wake_at_that_is_no_time_is_an_error_that_names_the_handler(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"`wake_at` of 'Digest' is"):
        prepared.checked(Prepared(wake_at=given), "Digest", ["t"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "must return Prepared"),
        (Prepared, "the class Prepared"),
        (Prepared(reserve=["7"]), "must map topics"),  # type: ignore[arg-type]
        (Prepared(reserve={"other": ["7"]}), "does not subscribe"),
        (Prepared(reserve={"t": "7"}), "must list ids"),
        (Prepared(reserve={"t": [7]}), "an id in `reserve"),  # type: ignore[list-item]
        (Prepared(reserve={"t": [str(n) for n in range(1_001)]}), "at most 1000"),
        (Prepared(title=7), "`title`"),  # type: ignore[arg-type]
        (Prepared(title="x" * 1_001), "`title`"),
        (Prepared(ui={"x": object()}), "`ui`"),
        (Prepared(ui={"x": "y" * 70_000}), "`ui`"),
        (Prepared(ui=[1]), "`ui`"),  # type: ignore[arg-type]
    ],
)
def test_what_prepare_returns_is_checked_field_by_field(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match="Digest") as caught:
        prepared.checked(given, "Digest", ["t"])
    assert said in str(caught.value)


def test_a_consumer_that_reserves_the_same_event_twice_reserves_it_once() -> None:
    checked = prepared.checked(Prepared(reserve={"t": ["7", "7", "8"], "u": []}), "Digest", ["t", "u"])
    assert checked.reserve == {"t": ["7", "8"]}
    assert checked.reserved
    assert not prepared.checked(Prepared(reserve={"t": []}), "Digest", ["t"]).reserved
