"""How the embedded server is configured: small, quick to start, and as durable as any other PostgreSQL.

Nothing here trades safety for speed. What a caller sets explicitly comes last and wins.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

Setting: TypeAlias = str | float | bool

_DEFAULTS: dict[str, Setting] = {
    "fsync": True,
    "synchronous_commit": True,
    "full_page_writes": True,
    "shared_buffers": "128MB",
    "max_connections": 100,
    # Recycled segments spare a commit the creation of a new file; fewer checkpoints spare it full pages.
    "wal_buffers": "16MB",
    "min_wal_size": "256MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    # Every statement here is short; compiling one costs more than running it.
    "jit": False,
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "cluster_name": "kagzi",
}


def arguments(settings: Mapping[str, Setting], socket_directory: Path, tcp_port: int | None) -> list[str]:
    """The command-line options of `postgres`."""
    where: dict[str, Setting] = {
        "unix_socket_directories": str(socket_directory),
        "unix_socket_permissions": "0700",
        "listen_addresses": "" if tcp_port is None else "127.0.0.1",
        "port": 5432 if tcp_port is None else tcp_port,
    }
    merged = {**_DEFAULTS, **settings, **where}
    return [part for name, value in merged.items() for part in ("-c", f"{name}={_written(value)}")]


def _written(value: Setting) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
