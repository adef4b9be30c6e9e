"""The system user that PostgreSQL runs as.

PostgreSQL refuses root, so root hands the server to the owner of an existing cluster, or to `nobody` for a
new one; everyone else runs it as themselves. Permissions of other directories are read here, never changed.
"""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from kagzi.embedded.errors import EmbeddedError


@dataclass(frozen=True, slots=True)
class Account:
    """A user and group; `switched` when they are not the ones this process has."""

    uid: int
    gid: int
    switched: bool

    @property
    def user(self) -> int | None:
        return self.uid if self.switched else None

    @property
    def group(self) -> int | None:
        return self.gid if self.switched else None

    @property
    def groups(self) -> list[int] | None:
        return [] if self.switched else None

    def give(self, path: Path) -> None:
        """Make a file or directory of ours belong to the account."""
        if self.switched:
            os.chown(path, self.uid, self.gid)

    def reaches(self, path: Path) -> bool:
        """Whether the account may enter (or execute) the path and every directory above it."""
        return not self.switched or all(self._enters(step) for step in (path, *path.parents))

    def _enters(self, path: Path) -> bool:
        found = path.stat()
        shift = 6 if found.st_uid == self.uid else 3 if found.st_gid == self.gid else 0
        return bool(found.st_mode >> shift & 1)


def choose(cluster: Path) -> Account:
    """Who serves this cluster, which need not exist yet."""
    owner = cluster.stat() if cluster.exists() else None
    if os.geteuid() != 0:
        if owner and owner.st_uid != os.geteuid():
            raise EmbeddedError(
                f"{cluster} belongs to {_name(owner.st_uid)}, and only that user or root can serve it: "
                f"run as {_name(owner.st_uid)} or choose another directory (KAGZI_DATA_DIR)"
            )
        return Account(os.geteuid(), os.getegid(), switched=False)
    if owner:
        if owner.st_uid == 0:
            raise EmbeddedError(
                f"{cluster} belongs to root, and PostgreSQL refuses to run as root: "
                f"give it to an ordinary user, for example with chown -R nobody '{cluster}'"
            )
        return Account(owner.st_uid, owner.st_gid, switched=True)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise EmbeddedError(
            "PostgreSQL refuses to run as root, and this system has no user `nobody` to run it as: "
            "start as an ordinary user, or set KAGZI_DB_URL to a server that exists"
        ) from None
    return Account(nobody.pw_uid, nobody.pw_gid, switched=True)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"the user with id {uid}"
