"""Notices between servers: heard, coalesced, survived, and never depended upon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import asyncpg
import pytest

from kagzi.embedded import Embedded
from kagzi.server.notifier import Notifier
from kagzi.store.notices import CHANNEL, Kind, key_hash

LONG = 20.0


class Ear:
    """Keeps what one subscriber hears, and lets a test wait for it."""

    def __init__(self) -> None:
        self.heard: list[str | None] = []
        self._changed = asyncio.Event()

    def __call__(self, key: str | None) -> None:
        self.heard.append(key)
        self._changed.set()

    async def until(self, met: Callable[[list[str | None]], bool]) -> None:
        async with asyncio.timeout(LONG):
            while not met(self.heard):
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def notifying(url: str, *ears: tuple[Kind, Ear]) -> AsyncIterator[Notifier]:
    notifier = Notifier(url)
    for kind, ear in ears:
        notifier.subscribe(kind, ear)
    notifier.start()
    try:
        await asyncio.wait_for(notifier.connected.wait(), LONG)
        yield notifier
    finally:
        await notifier.stop()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


def looked(times: int, heard: list[str | None]) -> bool:
    return heard.count(None) == times


async def test_what_one_server_tells_the_others_hear_by_kind_and_key(database_url: str) -> None:
    work, ended = Ear(), Ear()
    async with notifying(database_url, (Kind.WORK, work), (Kind.ENDED, ended)), notifying(database_url) as other:
        other.tell(Kind.WORK, "0123456789ab")
        other.tell(Kind.ENDED, "ba9876543210")
        await work.until(lambda heard: "0123456789ab" in heard)
        await ended.until(lambda heard: "ba9876543210" in heard)
    assert work.heard == [None, "0123456789ab"]
    assert ended.heard == [None, "ba9876543210"]


async def test_a_server_does_not_hear_itself(database_url: str) -> None:
    mine, theirs = Ear(), Ear()
    async with notifying(database_url, (Kind.WORK, mine)) as notifier, notifying(database_url, (Kind.WORK, theirs)):
        notifier.tell(Kind.WORK, "a")
        await theirs.until(lambda heard: "a" in heard)
        async with connected(database_url) as connection:
            await connection.execute(f"notify {CHANNEL}, 'wb'")
        await mine.until(lambda heard: "b" in heard)
    assert mine.heard == [None, "b"]


async def test_whoever_subscribes_is_told_to_look_once_the_connection_listens(database_url: str) -> None:
    ears = {kind: Ear() for kind in Kind}
    async with notifying(database_url, *ears.items()), connected(database_url) as connection:
        listening = await connection.fetchval(
            "select count(*) from pg_stat_activity where application_name = 'kagzi-notifier' "
            "and datname = current_database()"
        )
    assert listening == 1
    assert all(ear.heard == [None] for ear in ears.values())


async def test_a_killed_connection_comes_back_and_everybody_looks_again(database_url: str) -> None:
    ear = Ear()
    async with notifying(database_url, (Kind.TOLD, ear)), connected(database_url) as connection:
        for times in (2, 3):
            await connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'kagzi-notifier' "
                "and datname = current_database()"
            )
            await ear.until(partial(looked, times))
        await connection.execute(f"notify {CHANNEL}, 'tx'")
        await ear.until(lambda heard: "x" in heard)


async def test_it_survives_the_database_and_drops_what_it_is_told_meanwhile(postgres: Embedded) -> None:
    here, there = Ear(), Ear()
    url = postgres.url
    async with notifying(url, (Kind.WORK, here)) as one, notifying(url, (Kind.WORK, there)):
        await asyncio.to_thread(postgres.stop, immediate=True)
        while one.connected.is_set():
            one.tell(Kind.WORK, "lost")
            await asyncio.sleep(0.001)
        one.tell(Kind.WORK, "lost")
        await asyncio.to_thread(postgres.start)
        await here.until(partial(looked, 2))
        await there.until(partial(looked, 2))
        one.tell(Kind.WORK, "found")
        await there.until(lambda heard: "found" in heard)
    assert "lost" not in there.heard


async def test_it_starts_without_a_database_and_finds_it_later(postgres: Embedded) -> None:
    ear = Ear()
    url = postgres.url
    await asyncio.to_thread(postgres.stop)
    notifier = Notifier(url)
    notifier.subscribe(Kind.CLOCK, ear)
    notifier.start()
    try:
        await asyncio.to_thread(postgres.start)
        await ear.until(lambda heard: heard == [None])
    finally:
        await notifier.stop()


async def test_notices_of_the_same_moment_share_a_transaction_and_equal_ones_are_one(database_url: str) -> None:
    ear = Ear()
    now = "select pg_current_xact_id()::text::bigint"
    async with (
        notifying(database_url, (Kind.WORK, ear)),
        notifying(database_url) as other,
        connected(database_url) as connection,
    ):
        before = await connection.fetchval(now)
        for number in range(3_000):
            other.tell(Kind.WORK, str(number % 1_500))
        await ear.until(lambda heard: "1499" in heard)
        after = await connection.fetchval(now)
    assert sorted(ear.heard[1:], key=lambda key: int(key or "")) == [str(number) for number in range(1_500)]
    # Two statements of at most 1,000, and this reading. Other databases of the same server may add theirs.
    assert after - before < 100


async def test_a_notice_that_nobody_understands_is_let_pass_and_a_bare_letter_means_look(database_url: str) -> None:
    ear = Ear()
    async with notifying(database_url, (Kind.WORK, ear)), connected(database_url) as connection:
        for payload in ("", "z123", "é", "w", "wend"):
            await connection.execute("select pg_notify($1, $2)", CHANNEL, payload)
        await ear.until(lambda heard: "end" in heard)
    assert ear.heard == [None, None, "end"]


async def test_a_subscriber_that_fails_or_has_left_harms_nobody(database_url: str) -> None:
    def broken(_key: str | None) -> None:
        raise ValueError("not me")

    left, stays = Ear(), Ear()
    notifier = Notifier(database_url)
    notifier.subscribe(Kind.WORK, broken)
    leave = notifier.subscribe(Kind.WORK, left)
    notifier.subscribe(Kind.WORK, stays)
    notifier.start()
    try:
        await stays.until(lambda heard: heard == [None])
        leave()
        async with connected(database_url) as connection:
            await connection.execute(f"notify {CHANNEL}, 'wa'")
        await stays.until(lambda heard: "a" in heard)
    finally:
        await notifier.stop()
    assert left.heard == [None]


async def test_postgresql_makes_the_same_hash_for_functions_that_users_call(database_url: str) -> None:
    async with connected(database_url) as connection:
        for parts in (("default", "default"), ("ns é", "queue"), ("one",)):
            text = await connection.fetchval(
                "select left(encode(sha256(convert_to(array_to_string($1::text[], chr(31)), 'UTF8')), 'hex'), 12)",
                list(parts),
            )
            assert text == key_hash(*parts)


def test_a_hash_tells_where_one_name_ends() -> None:
    assert key_hash("ab", "c") != key_hash("a", "bc")
    assert len(key_hash("ab", "c")) == 12


@pytest.mark.parametrize("kind", Kind)
def test_a_kind_is_one_letter(kind: Kind) -> None:
    assert len(kind) == 1
