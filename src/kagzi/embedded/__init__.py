"""A private PostgreSQL that is a child of this process: for `kagzi dev`, the demo and the tests.

It needs no installation beyond the `embedded` extra, starts in well under a second on an existing directory,
keeps every durability setting of a real server, and ends with the process that started it, however that ends.
It never shares a data directory, never listens beyond loopback, and never asks PostgreSQL to run as root.
"""

from kagzi.embedded.database import Embedded, address_of
from kagzi.embedded.errors import DirectoryInUse, EmbeddedError, StartFailed

__all__ = ["DirectoryInUse", "Embedded", "EmbeddedError", "StartFailed", "address_of"]
