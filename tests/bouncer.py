"""PgBouncer in transaction mode before the tests' database server: Debian's program, as a process of its own. After
each transaction a connection is somebody else's, so whatever the server under test keeps in a session is found out.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

_READY_WITHIN = 30.0
_SETTINGS = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
max_client_conn = 500
server_check_delay = 0
logfile = {directory}/log
"""


class Bouncer:
    """One PgBouncer for all databases of the server that `url` names, with three connections to each."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    def through(self, url: str) -> str:
        """The same database by way of the pooler."""
        where = urlsplit(url)
        return f"postgresql://{where.username}@127.0.0.1:{self._port}{where.path}"

    def __enter__(self) -> Self:
        program = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
        assert program, "these tests need Debian's PgBouncer: apt install pgbouncer"
        host = parse_qs(self._target.query).get("host", [self._target.hostname or "127.0.0.1"])[0]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._directory = Path(tempfile.mkdtemp(prefix="kagzi-pooler-"))
        settings = self._directory / "pgbouncer.ini"
        settings.write_text(
            _SETTINGS.format(
                host=host,
                port=self._target.port or 5432,
                user=self._target.username,
                listen=self._port,
                directory=self._directory,
            )
        )
        # It refuses to be root, and only the socket's owner reaches a private server.
        owner = Path(host).stat().st_uid if host.startswith("/") else 65534
        user = owner if os.geteuid() == 0 else None
        if user is not None:
            os.chown(self._directory, user, -1)
        self._process = subprocess.Popen(
            [program, str(settings)], user=user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/"
        )
        self._await_ready()
        return self

    def _await_ready(self) -> None:
        assert self._process is not None
        until = time.monotonic() + _READY_WITHIN
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
            except OSError:
                running = self._process.poll() is None and time.monotonic() < until
                assert running, f"PgBouncer did not start: {self.log()}"
                time.sleep(0.01)
            else:
                return

    def log(self) -> str:
        """What it has said."""
        path = (self._directory or Path()) / "log"
        return path.read_text()[-2_000:] if path.exists() else ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
        if self._directory is not None:
            shutil.rmtree(self._directory)
