"""The data directory: what lies in it, how it is made, how it is found fit to be served.

`cluster` holds the files of PostgreSQL and belongs to the account that serves them; `password`, `owner` and
`postgres.log` beside it are ours. A cluster appears by a rename after everything in it is on disk, so one
that exists is complete: with its role, its password and its database. It is never prepared without the lock.
"""

import os
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kagzi.embedded import ownership
from kagzi.embedded.account import Account
from kagzi.embedded.binaries import Version
from kagzi.embedded.errors import DirectoryInUse, EmbeddedError, StartFailed

ROLE = "kagzi"
DATABASE = "kagzi"

# PostgreSQL keeps paths in buffers of 1024 bytes and appends its own file names.
_LONGEST_PATH = 900


@dataclass(frozen=True, slots=True)
class Cluster:
    """The files of one server below a data directory, made for one major version of PostgreSQL."""

    directory: Path
    version: Version
    account: Account
    binaries: Path

    @property
    def path(self) -> Path:
        return self.directory / "cluster"

    def prepare(self, lock: int) -> None:
        """Make the cluster if there is none; refuse one that cannot be served; clear what a crash left."""
        if not self.path.exists():
            self._create(lock)
            return
        made_by = self.path.joinpath("PG_VERSION").read_text().strip()
        if made_by != str(self.version):
            raise EmbeddedError(
                f"{self.directory} was made by PostgreSQL {made_by} and cannot be served by {self.version}: "
                f"ask for version {made_by}, or choose another directory (KAGZI_DATA_DIR)"
            )
        self._clear_stale_pid()

    def password(self) -> str:
        try:
            return self.directory.joinpath("password").read_text().strip()
        except FileNotFoundError:
            raise EmbeddedError(
                f"{self.directory / 'password'} is gone, without which TCP connections are refused: "
                f"set a new one with ALTER ROLE {ROLE} PASSWORD over the socket and write it there"
            ) from None

    def ready(self, pid: int) -> bool:
        """Whether the postmaster with this pid accepts connections; a replica does so too."""
        lines = self.pid_file(self.path)
        return len(lines) > 7 and lines[0].strip() == str(pid) and lines[7].strip() in ("ready", "standby")

    def address(self, path: Path, descriptor: int) -> str:
        """What to call the directory towards PostgreSQL, which inherits the descriptor of it.

        Below a directory that the account may not enter, such as /root, and when the path is too long, the
        way goes through the descriptor, which needs no permission on anything above.
        """
        if self.account.reaches(path) and len(os.fsencode(path)) <= _LONGEST_PATH:
            return str(path)
        if Path("/proc/self/fd").is_dir():
            return f"/proc/self/fd/{descriptor}"
        raise EmbeddedError(f"PostgreSQL cannot reach {path}: choose a short path in directories open to all")

    def _create(self, lock: int) -> None:
        fresh = self.directory / "cluster.new"
        if fresh.exists():
            shutil.rmtree(fresh)
        fresh.mkdir(mode=0o700)
        self.account.give(fresh)
        password = secrets.token_urlsafe(24)
        descriptor = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY)
        try:
            address = self.address(fresh, descriptor)
            inherited = (lock, descriptor)
            self._run(["initdb", "-D", address, *self._initdb_options()], "", inherited)
            script = f"ALTER ROLE {ROLE} PASSWORD '{password}'\nCREATE DATABASE {DATABASE}\n"
            self._run(["postgres", "--single", "-D", address, "postgres"], script, inherited)
        finally:
            os.close(descriptor)
        self._write_password(password)
        fresh.rename(self.path)
        _flush(self.directory)

    def _initdb_options(self) -> list[str]:
        # Both sort by code point on every system; 18 also knows upper and lower case beyond ASCII.
        builtin = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if self.version >= 17 else []
        who = [f"--username={ROLE}", "--auth-local=trust", "--auth-host=scram-sha-256"]
        return [*who, "--encoding=UTF8", "--locale=C", *builtin, "--data-checksums", "--no-instructions"]

    def _run(self, command: list[str], script: str, inherited: tuple[int, ...]) -> None:
        program, *arguments = command
        done = subprocess.run(
            [str(self.binaries / program), *arguments],
            input=script,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            cwd="/",
            env=environment(),
            pass_fds=inherited,
            user=self.account.user,
            group=self.account.group,
            extra_groups=self.account.groups,
        )
        # The single-user server ends with 0 also when a statement failed.
        if done.returncode != 0 or "ERROR:" in done.stdout:
            raise StartFailed(self.directory, f"could not be created ({program})", done.stdout[-4000:])

    def _write_password(self, password: str) -> None:
        path = self.directory / "password"
        path.unlink(missing_ok=True)
        path.touch(mode=0o600, exist_ok=False)
        with path.open("w") as file:
            file.write(password + "\n")
            file.flush()
            os.fsync(file.fileno())

    @staticmethod
    def pid_file(path: Path) -> list[str]:
        """What a postmaster wrote down of itself in the cluster at `path`; nothing when there is none to be seen."""
        try:
            return path.joinpath("postmaster.pid").read_text().splitlines()
        except (FileNotFoundError, PermissionError):
            return []

    def _clear_stale_pid(self) -> None:
        """Clear a stale postmaster.pid whose number a stranger has now, which PostgreSQL would refuse.

        A number that nobody has is left to PostgreSQL, which then looks at the dead server's shared memory too.
        """
        lines = self.pid_file(self.path)
        pid = int(lines[0]) if lines and lines[0].isdigit() else None
        if pid is None or not ownership.alive(pid) or not Path("/proc/self/cwd").exists():
            return
        # Every process of a server works in its data directory.
        try:
            serving = Path(f"/proc/{pid}/cwd").samefile(self.path)
        except OSError:
            serving = False
        if serving:
            raise DirectoryInUse(self.directory, pid)
        self.path.joinpath("postmaster.pid").unlink()


def environment() -> dict[str, str]:
    """Ours, without the variables that would change what PostgreSQL or initdb does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def _flush(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
