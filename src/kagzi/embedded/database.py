"""The embedded server as its user sees it: started, stopped, crashed and restarted under one URL.

Methods block, and `async with` runs them in a thread; the server belongs to the process, not to the thread
or the event loop that started it. Between the first start and `close` the URL stays the same, so that
clients can be watched while the server below them goes away and returns.
"""

import asyncio
import contextlib
import os
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from kagzi.embedded import account, binaries, ownership
from kagzi.embedded.binaries import Version
from kagzi.embedded.cluster import DATABASE, ROLE, Cluster
from kagzi.embedded.errors import EmbeddedError, StartFailed
from kagzi.embedded.process import Order, Process
from kagzi.embedded.settings import Setting, arguments


class Embedded:
    """A PostgreSQL below `data_dir`, made there on first use.

    Only its owner can reach it, through a socket in a private directory. With `tcp_port` (0: any free port)
    it also listens on 127.0.0.1, which every user of the machine can reach, so there it asks for the
    password that lies in the data directory; `url` then names the port and the password.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        *,
        version: Version = 18,
        tcp_port: int | None = None,
        settings: Mapping[str, Setting] | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        self.directory = Path(data_dir).expanduser().resolve()
        self._version = version
        self._tcp_port = tcp_port
        self._settings = dict(settings or {})
        self._start_timeout = start_timeout
        self._cluster: Cluster | None = None
        self._process: Process | None = None
        self._scratch: Path | None = None

    @property
    def url(self) -> str:
        """Where asyncpg and libpq find the database `kagzi`; the same until `close`."""
        cluster = self._started()
        if self._tcp_port is None:
            return f"postgresql://{ROLE}@/{DATABASE}?host={self._scratch}"
        return f"postgresql://{ROLE}:{cluster.password()}@127.0.0.1:{self._tcp_port}/{DATABASE}"

    @property
    def pid(self) -> int:
        """The process id of the postmaster."""
        if self._process is None or not self._process.running:
            raise EmbeddedError(f"the PostgreSQL in {self.directory} is not running: call start() first")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def binaries(self) -> Path:
        """The directory of this server's programs: psql, pg_basebackup, pg_controldata and the rest."""
        return self._started().binaries

    @property
    def log(self) -> Path:
        return self.directory / "postgres.log"

    def start(self) -> None:
        """Start, or start again after a stop or a crash, and return when connections are accepted."""
        if self.running:
            return
        self.stop()
        try:
            self.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
            lock = ownership.take(self.directory)
            try:
                self._launch(lock)
            finally:
                os.close(lock)
        except OSError as error:
            raise EmbeddedError(f"cannot use the database directory {self.directory}: {error}") from error
        finally:
            if self._cluster is None:
                self._discard_scratch()

    def stop(self, *, immediate: bool = False) -> None:
        """Stop in order; or immediately, as in a crash, leaving the recovery to the next start."""
        if self._process is not None:
            self._process.end(Order.IMMEDIATE if immediate else Order.FAST)
            self._process = None

    def crash(self) -> None:
        """Kill the postmaster with SIGKILL and return when the last backend is gone."""
        if self._process is not None:
            self._process.end(Order.KILL)
            self._process = None

    def restart(self, *, immediate: bool = False) -> None:
        self.stop(immediate=immediate)
        self.start()

    def close(self) -> None:
        """Stop and give up the URL."""
        self.stop()
        self._discard_scratch()
        self._cluster = None

    def _started(self) -> Cluster:
        if self._cluster is None:
            raise EmbeddedError(f"the PostgreSQL in {self.directory} was not started: call start() first")
        return self._cluster

    def _launch(self, lock: int) -> None:
        path = self.directory / "cluster"
        serving = account.choose(path)
        cluster = Cluster(self.directory, self._version, serving, binaries.find(self._version, serving))
        cluster.prepare(lock)
        scratch = self._clean_scratch(serving)
        if self._tcp_port == 0:
            self._tcp_port = _free_port()
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            options = arguments(self._settings, scratch, self._tcp_port)
            self._process = Process.spawn(
                [str(cluster.binaries / "postgres"), "-D", cluster.address(path, descriptor), *options],
                account=serving,
                scratch=scratch,
                inherited=(lock, descriptor),
                log=self.log,
            )
        finally:
            os.close(descriptor)
        try:
            self._await_ready(self._process, cluster)
        except BaseException:
            self.stop(immediate=True)
            raise
        self._cluster = cluster

    def _await_ready(self, process: Process, cluster: Cluster) -> None:
        deadline = time.monotonic() + self._start_timeout
        while not cluster.ready(process.pid):
            if not process.running:
                raise StartFailed(self.directory, "ended while it was starting", process.log_tail())
            if time.monotonic() > deadline:
                reason = f"was not ready after {self._start_timeout:g} s"
                raise StartFailed(self.directory, reason, process.log_tail())
            time.sleep(0.005)

    def _clean_scratch(self, serving: account.Account) -> Path:
        """The directory of the socket: private, and short, because a socket's path ends at 107 bytes."""
        if self._scratch is None:
            place = "/tmp"  # noqa: S108  (mkdtemp makes a private directory there; TMPDIR may be too long)
            place = place if os.access(place, os.W_OK) else tempfile.gettempdir()
            self._scratch = Path(tempfile.mkdtemp(prefix="kagzi-", dir=place))
            serving.give(self._scratch)
        # A killed server leaves a lock file there whose pid may by now be that of a stranger.
        for leftover in self._scratch.iterdir():
            leftover.unlink()
        return self._scratch

    def _discard_scratch(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread cannot be interrupted; without this the server would outlive the block it was for.
            await asyncio.wait([starting])
            await asyncio.to_thread(self.close)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)


def address_of(data_dir: str | os.PathLike[str]) -> str | None:
    """Where the server answers that another process runs in `data_dir`; None when none does."""
    lines = Cluster.pid_file(Path(data_dir).expanduser().resolve() / "cluster")
    if len(lines) <= 7 or lines[7].strip() != "ready" or not lines[4].strip():
        return None
    return f"postgresql://{ROLE}@/{DATABASE}?host={lines[4].strip()}&port={lines[3].strip()}"


def _free_port() -> int:
    """A free port below the range of outgoing connections, one of which could take it during a restart."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
