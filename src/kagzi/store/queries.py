"""Named SQL queries. Each module of the store keeps its statements in a `.sql` file of the same name and binds them
here by name, with the columns it reads. Parameters are written `:name` and become `$n`; a query is called by keyword,
so that a misspelt or missing parameter is a TypeError and never a wrong value. Nothing here builds SQL from values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from asyncpg import Record
from asyncpg.connection import Connection

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_HEADER = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)

# Every query bound by a module, for the test that prepares them all against a real database.
bound: list[Query] = []


@dataclass(frozen=True, slots=True)
class Query:
    """One statement of a `.sql` file and what Python expects of it."""

    source: str
    name: str
    text: str
    parameters: tuple[str, ...]
    columns: tuple[str, ...]

    async def fetch(self, connection: Connection, **values: Any) -> list[Record]:
        """All rows."""
        return await connection.fetch(self.text, *self._arguments(values))

    async def first(self, connection: Connection, **values: Any) -> Record | None:
        """The first row, or None."""
        return await connection.fetchrow(self.text, *self._arguments(values))

    async def execute(self, connection: Connection, **values: Any) -> int:
        """The number of rows it touched."""
        status = await connection.execute(self.text, *self._arguments(values))
        return int(status.rpartition(" ")[2] or 0) if status[-1].isdigit() else 0

    def _arguments(self, values: dict[str, Any]) -> Iterator[Any]:
        if len(values) != len(self.parameters):
            raise TypeError(f"{self.source}:{self.name} takes {self.parameters}, got {tuple(values)}")
        try:
            return iter([values[name] for name in self.parameters])
        except KeyError as missing:
            raise TypeError(f"{self.source}:{self.name} takes {self.parameters}, got {tuple(values)}") from missing


class Queries:
    """The queries of one `.sql` file of the store."""

    def __init__(self, source: str) -> None:
        self._source = source
        text = files(__package__).joinpath(source).read_text(encoding="utf-8")
        parts = _HEADER.split(text)[1:]
        self._texts = dict(zip(parts[::2], parts[1::2], strict=True))

    def bind(self, name: str, columns: Sequence[str] = ()) -> Query:
        """The named query; `columns` are those of its result, in order."""
        order: dict[str, int] = {}
        body = _strip_comments(self._texts[name])

        def number(match: re.Match[str]) -> str:
            return f"${order.setdefault(match[1], len(order) + 1)}"

        text = _PARAMETER.sub(number, body).strip().removesuffix(";")
        query = Query(self._source, name, text, tuple(order), tuple(columns))
        bound.append(query)
        return query


def _strip_comments(text: str) -> str:
    """Comments are for readers; a `:word` in one is no parameter."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
