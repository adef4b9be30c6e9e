"""Past one machine: where the Citus extension is in the database, every table of the schema is spread over its nodes by
namespace, all of them alike, so that the rows of a namespace live together and every statement that writes stays on one
node. What is spread already is left as it is; without the extension nothing happens. The statements stand here because
what they call exists only there.
"""

from __future__ import annotations

import structlog
from asyncpg.connection import Connection

log = structlog.get_logger(__name__)

_PRESENT = "select exists (select 1 from pg_extension where extname = 'citus')"
# The runs come first: the others are laid beside them.
_TABLES = """
select format('%I.%I', c.table_schema, c.table_name) as name
from information_schema.columns c
join information_schema.tables t using (table_schema, table_name)
where c.table_schema = 'kagzi' and c.column_name = 'namespace' and t.table_type = 'BASE TABLE'
  and not exists (select 1 from pg_dist_partition d
                  where d.logicalrelid = format('%I.%I', c.table_schema, c.table_name)::regclass)
order by c.table_name <> 'workflow_runs', c.table_name
"""
_DISTRIBUTE = "select create_distributed_table($1::text::regclass, 'namespace', colocate_with => $2)"
_FIRST = "kagzi.workflow_runs"


async def distribute(connection: Connection) -> list[str]:
    """Spreads what is not spread yet; answers the names of those tables."""
    if not await connection.fetchval(_PRESENT):
        return []
    names = [row["name"] for row in await connection.fetch(_TABLES)]
    for name in names:
        await connection.execute(_DISTRIBUTE, name, "none" if name == _FIRST else _FIRST)
        log.info("table_distributed", table=name)
    return names
