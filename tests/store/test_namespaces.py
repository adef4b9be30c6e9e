"""Namespaces: created once, changed in part, and closed to new work while disabled."""

from __future__ import annotations

import asyncio

import pytest
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.store import namespaces
from kagzi.store.errors import Refused
from kagzi.store.namespaces import Retention
from tests.store import given


async def test_a_namespace_is_created_once_and_the_second_creation_changes_nothing(connection: Connection) -> None:
    kept = Retention(completed_ms=1_000, failed_ms=0)
    made, new = await namespaces.create(connection, "shop", description="orders", retention=kept)
    again, anew = await namespaces.create(connection, "shop", description="other")
    assert (new, anew) == (True, False)
    assert again == made
    assert (made.description, made.enabled, made.retention) == ("orders", True, kept)


async def test_two_creations_at_once_make_one_namespace(connection: Connection, other: Connection) -> None:
    async with connection.transaction():
        _, new = await namespaces.create(connection, "shop")
        waiting = asyncio.ensure_future(namespaces.create(other, "shop"))
        while not await connection.fetchval("select count(*) from pg_locks where not granted"):
            pass
    found, anew = await waiting
    assert (new, anew, found.name) == (True, False, "shop")


async def test_an_unknown_namespace_is_refused_by_name(connection: Connection) -> None:
    looking = (namespaces.get, namespaces.require)
    # What changes a namespace is asked for it by `name`.
    for action in (*looking, namespaces.update, namespaces.enable, namespaces.disable):
        with pytest.raises(Refused) as refusal:
            await action(connection, "nowhere")
        detail = refusal.value.detail
        field = "namespace" if action in looking else "name"
        assert (detail.code, detail.subject, detail.field) == (ErrorDetail.NOT_FOUND, "nowhere", field)


async def test_a_disabled_namespace_is_refused_where_work_would_start(connection: Connection) -> None:
    await given.run(connection, "RUNNING")
    await given.run(connection, "PENDING")
    disabled, running = await namespaces.disable(connection, "default")
    assert (disabled.enabled, running) == (False, 1)
    with pytest.raises(Refused) as refusal:
        await namespaces.require(connection, "default")
    assert refusal.value.detail.code == ErrorDetail.PRECONDITION_FAILED
    assert not (await namespaces.require(connection, "default", enabled=False)).enabled
    await namespaces.enable(connection, "default")
    assert (await namespaces.require(connection, "default")).enabled


async def test_only_a_change_moves_the_time_of_the_last_change(connection: Connection) -> None:
    first = await namespaces.get(connection, "default")
    assert await namespaces.enable(connection, "default") == first
    assert await namespaces.update(connection, "default") == first
    disabled, _ = await namespaces.disable(connection, "default")
    assert disabled.updated_at > first.updated_at
    assert (await namespaces.disable(connection, "default"))[0] == disabled


async def test_an_update_leaves_what_is_not_given(connection: Connection) -> None:
    await namespaces.create(connection, "shop", description="orders", retention=Retention(completed_ms=5))
    described = await namespaces.update(connection, "shop", description="")
    assert (described.description, described.retention) == ("", Retention(completed_ms=5))
    kept = await namespaces.update(connection, "shop", retention=Retention(events_ms=7))
    assert (kept.description, kept.retention) == ("", Retention(events_ms=7))
    assert (await namespaces.get(connection, "default")).retention == Retention()


async def test_namespaces_are_listed_by_name_in_pages(connection: Connection) -> None:
    for name in ("b", "a", "c"):
        await namespaces.create(connection, name)
    await namespaces.disable(connection, "b")

    async def names(after: str = "", enabled: bool | None = None) -> list[str]:
        found = await namespaces.list_page(connection, most=2, after=after, enabled=enabled)
        return [namespace.name for namespace in found]

    assert await names() == ["a", "b"]
    assert await names(after="b") == ["c", "default"]
    assert await names(enabled=False) == ["b"]
    assert await names(enabled=True) == ["a", "c"]
