"""`kagzi migrate` where Citus is: every table is spread by namespace, beside the runs, once. Citus itself cannot be had
here; an extension of the same name notes what it is asked for, and refuses what Citus would refuse.
"""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from kagzi.embedded import Embedded
from kagzi.store import migrate
from tests.database import BOUNDS, temporary, version

_CONTROL = "default_version = '1.0'\nrelocatable = false\n"
_SCRIPT = """
create table public.pg_dist_partition (logicalrelid regclass primary key, colocated text);
create function public.create_distributed_table(regclass, text, colocate_with text) returns void language plpgsql as $$
begin
    if exists (select 1 from pg_index i where i.indrelid = $1 and i.indisunique and not exists (
        select 1 from pg_attribute a where a.attrelid = $1 and a.attname = $2 and a.attnum = any (i.indkey))) then
        raise exception 'cannot create constraint on %: it does not hold the distribution column', $1;
    end if;
    insert into public.pg_dist_partition values ($1, colocate_with);
end $$;
"""


@pytest.mark.skipif(version() < 18, reason="an extension can be put beside PostgreSQL from 18 on")
async def test_where_citus_is_every_table_is_spread_by_namespace_once(data_directory: Path) -> None:
    with temporary(None) as place:
        place.chmod(0o755)
        place.joinpath("extension").mkdir()
        place.joinpath("extension", "citus.control").write_text(_CONTROL)
        place.joinpath("extension", "citus--1.0.sql").write_text(_SCRIPT)
        settings = {**BOUNDS, "extension_control_path": f"{place}:$system"}
        async with Embedded(data_directory, settings=settings) as server:
            connection = await asyncpg.connect(server.url)
            await connection.execute("create extension citus")
            await migrate.apply(server.url)
            rows = await connection.fetch(
                "select c.relname, d.colocated from pg_dist_partition d join pg_class c on c.oid = d.logicalrelid"
            )
            spread = {row["relname"]: row["colocated"] for row in rows}
            tables = await connection.fetch(
                "select relname from pg_class where relkind = 'r' and relname <> 'migrations'"
                " and relnamespace = 'kagzi'::regnamespace"
            )
            assert spread.keys() == {row[0] for row in tables}
            assert spread.pop("workflow_runs") == "none"
            assert set(spread.values()) == {"kagzi.workflow_runs"}
            assert await migrate.apply(server.url) == []
            await connection.close()
