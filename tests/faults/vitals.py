"""What an estate takes while it lives: memory of its processes, connections and size of its database. For whoever
watches a soak: what grows without the work growing is a leak. It asserts nothing.
"""

from __future__ import annotations

from pathlib import Path

from tests.faults.estate import Estate
from tests.survival.record import rows


async def look(estate: Estate) -> str:
    """One line of what there is now."""
    servers = [_memory(station.pid) for station in estate.stations]
    workers = [_memory(worker.process.pid) for worker in estate.berths.values()]
    [(connections,)] = await rows(
        estate.postgres.url, "select count(*) from pg_stat_activity where application_name like 'kagzi%'"
    )
    sizes = await rows(
        estate.postgres.url,
        "select c.relname, pg_total_relation_size(c.oid) / 1e6, s.n_live_tup, s.n_dead_tup from pg_class c "
        "join pg_stat_user_tables s on s.relid = c.oid where s.schemaname = 'kagzi' order by 2 desc limit 4",
    )
    tables = ", ".join(f"{name} {size:.1f} MB ({live} rows, {dead} dead)" for name, size, live, dead in sizes)
    return (
        f"servers {_megabytes(servers)}, workers {_megabytes(workers)}, {connections} connections; {tables}; "
        f"{len(estate.crew.entries())} effects"
    )


def _memory(pid: int) -> float:
    """In MB; nothing for a process that is gone."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    return sum(int(line.split()[1]) / 1_000 for line in lines if line.startswith("VmRSS"))


def _megabytes(sizes: list[float]) -> str:
    return " + ".join(f"{size:.0f}" for size in sizes) + " MB"
