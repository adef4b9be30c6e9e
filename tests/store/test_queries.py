"""The seam between SQL and Python: every query prepares on a real database, answers the columns its module
reads, and is called with exactly the parameters it names. Whatever is added to the store is held to it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import asyncpg

import kagzi.store
from kagzi.store.queries import Query, bound

NAMES = [found.name for found in pkgutil.iter_modules(kagzi.store.__path__)]
MODULES = [importlib.import_module(f"kagzi.store.{name}") for name in NAMES]
RUNNERS = {"fetch", "first", "execute"}


@dataclass(frozen=True, slots=True)
class Call:
    """One place where a module runs a query."""

    place: str
    query: Query
    given: frozenset[str]
    # A `**mapping` stands for the parameters that are not named; the query itself refuses what does not fit.
    open: bool
    runner: str

    @property
    def fits(self) -> bool:
        return self.given == set(self.query.parameters)

    @property
    def fits_in_part(self) -> bool:
        return self.given < set(self.query.parameters)


async def test_every_query_prepares_and_answers_the_columns_its_module_reads(database_url: str) -> None:
    connection = await asyncpg.connect(database_url, server_settings={"search_path": "pg_catalog, pg_temp"})
    wrong = []
    for query in bound:
        try:
            statement = await connection.prepare(query.text)
        except asyncpg.PostgresError as error:
            wrong.append(f"{query.source}:{query.name}: {error}")
            continue
        columns = tuple(column.name for column in statement.get_attributes())
        if columns != query.columns:
            wrong.append(f"{query.source}:{query.name} answers {columns}, bound with {query.columns}")
        if len(statement.get_parameters()) != len(query.parameters):
            wrong.append(f"{query.source}:{query.name} has a parameter PostgreSQL does not see")
    await connection.close()
    assert wrong == []


def test_every_query_is_called_with_exactly_its_parameters() -> None:
    wrong = [
        f"{call.place} gives {sorted(call.given)}, {call.query.name} takes {sorted(call.query.parameters)}"
        for call in calls()
        if not (call.fits_in_part if call.open else call.fits)
    ]
    assert wrong == []


def test_every_query_whose_rows_are_read_names_its_columns() -> None:
    assert [call.place for call in calls() if call.runner != "execute" and not call.query.columns] == []


def test_every_query_of_every_file_is_bound_once_and_called() -> None:
    called = {(call.query.source, call.query.name) for call in calls()}
    known = [(query.source, query.name) for query in bound]
    assert len(known) == len(set(known))
    assert sorted(set(known) - called) == []


def calls() -> Iterator[Call]:
    """Every call of a bound query in the store."""
    for module in MODULES:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=runner)) if runner in RUNNERS:
                    query = _query(module, name)
                    if query is not None:
                        names = [keyword.arg for keyword in node.keywords]
                        given = frozenset(name for name in names if name)
                        yield Call(f"{module.__name__}:{node.lineno}", query, given, None in names, runner)


def _query(module: ModuleType, name: str) -> Query | None:
    found = getattr(module, name, None)
    return found if isinstance(found, Query) else None
