"""What can go wrong with the embedded database, each error saying what to do about it.

EmbeddedError
├── DirectoryInUse   another process owns the data directory
└── StartFailed      PostgreSQL or initdb ended before it was ready; carries the end of its log
"""

from pathlib import Path


class EmbeddedError(Exception):
    """The embedded PostgreSQL cannot be used as asked."""


class DirectoryInUse(EmbeddedError):
    """Another process owns the data directory."""

    def __init__(self, directory: Path, pid: int | None) -> None:
        self.directory = directory
        self.pid = pid
        owner = f"process {pid}" if pid else "another process"
        super().__init__(
            f"the database directory {directory} is in use by {owner}: "
            "stop that process, choose another directory (KAGZI_DATA_DIR), "
            "or share one server by setting KAGZI_DB_URL"
        )


class StartFailed(EmbeddedError):
    """PostgreSQL ended, or stayed silent, before it accepted connections."""

    def __init__(self, directory: Path, reason: str, log: str) -> None:
        self.directory = directory
        self.reason = reason
        self.log = log
        super().__init__(f"the embedded PostgreSQL in {directory} {reason}; the end of its log:\n{log}")
