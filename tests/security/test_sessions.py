"""The server's sessions on the database: where they look for names, and how long they may hold what others wait for."""

from __future__ import annotations

import asyncpg

from kagzi.server.app import Server
from kagzi.server.settings import Settings
from kagzi.store import notices


async def test_names_are_looked_for_where_nobody_else_can_put_any(database_url: str) -> None:
    server = Server(Settings(server_port=0, worker_visibility_timeout_secs=3), database_url)
    await server.start()
    try:
        for database in (server.database, server.hot_database):
            assert await database.read(lambda c: c.fetchval("show search_path")) == "pg_catalog, pg_temp"
            idle = await database.read(lambda c: c.fetchval("show idle_in_transaction_session_timeout"))
            assert idle == "1500ms"
    finally:
        await server.stop(1.0)
    listening = await notices.listen(database_url, lambda _pid, _text: None, lambda: None)
    assert await listening.fetchval("show search_path") == "pg_catalog, pg_temp"
    await listening.close()


async def test_functions_that_users_call_pin_it_too(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    # Those in plain SQL with one expression are inlined, and name everything by its schema.
    loose = await connection.fetch(
        "select p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace join pg_language l"
        " on l.oid = p.prolang where n.nspname = 'kagzi' and l.lanname = 'plpgsql'"
        " and not exists (select from unnest(p.proconfig) c where c like 'search\\_path=pg\\_catalog%')"
    )
    definers = await connection.fetch(
        "select p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname = 'kagzi' and p.prosecdef"
    )
    await connection.close()
    assert (loose, definers) == ([], [])
