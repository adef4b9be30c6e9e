"""The rules every `.sql` file of the store obeys, as functions from text to a list of complaints.

A write or a lock names one namespace by equality, so that the rows it touches live on one node of a
distributed database. A query says what it promises, names its columns, asks no clock but `kagzi.now()`, and
an UPDATE calls nothing volatile. What these functions cannot read they complain about rather than let pass.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.house.sqltree import Node, Query, after, parse, queries, split, statements, until, words

EQUALITY = re.compile(
    r"(?:(?P<left>\w+) \. )?namespace = :namespace(?: :: \w+)?"
    r"|:namespace(?: :: \w+)? = (?:(?P<right>\w+) \. )?namespace"
)
GIVEN = re.compile(r":namespace(?: :: \w+)?(?: as \w+)?")
CLOCKS = {
    "now",
    "clock_timestamp",
    "statement_timestamp",
    "transaction_timestamp",
    "timeofday",
    "current_timestamp",
    "current_date",
    "current_time",
    "localtimestamp",
    "localtime",
}
VOLATILE = {"gen_random_uuid", "uuid_generate_v4", "uuidv4", "uuidv7", "random", "nextval", "setval"}
UNREAD = ("merge", "truncate", "lock", "copy")
OUTER = {"left", "right", "full"}
JOINS = ("join", "inner", "cross", "natural", *sorted(OUTER), ",")
CLAUSES = ("where", "group", "having", "window", "order", "limit", "offset", "fetch", "for", "union")
NO_ALIAS = {*JOINS, *CLAUSES, "on", "using", "set", "returning", "values", "select", "tablesample"}


@dataclass(frozen=True, slots=True)
class Relation:
    """A table in a FROM clause and the name conditions call it by; a subquery has no table."""

    table: str | None
    handle: str


def problems(text: str) -> list[str]:
    """Complain about everything in a `.sql` file that breaks a rule; each complaint names its query."""
    preamble, found = queries(text)
    complaints = ["a statement stands before the first `-- name:`"] if parse(preamble) else []
    names = [query.name for query in found]
    complaints += [f"two queries are named {name}" for name in sorted(set(names)) if names.count(name) > 1]
    for query in found:
        complaints += [f"{query.name} (line {query.line}): {complaint}" for complaint in _judge(query)]
    return complaints


def _judge(query: Query) -> Iterator[str]:
    nodes = parse(query.body)
    flat = words(nodes)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", query.name):
        yield "its name is not one lower-case word"
    if not 1 <= len(query.promise) <= 5 or not all(query.promise):
        yield "one to five comment lines follow the name and say what it promises, locks, and who loses"
    if not nodes:
        yield "there is no statement"
    yield from _stars(flat)
    yield from _calls(flat)
    ctes = _cte_names(nodes)
    for scope in statements(nodes):
        yield from _writes(scope)
        yield from _locks(scope, ctes)


def _stars(flat: list[str]) -> Iterator[str]:
    for before, word in itertools.pairwise(flat):
        if word == "*" and before in {"select", "distinct", "all", "returning", ",", "."}:
            yield "columns are named, never `*`"


def _calls(flat: list[str]) -> Iterator[str]:
    updates = any(word == "update" and flat[at - 1] not in {"for", "key"} for at, word in enumerate(flat))
    for at, word in enumerate(flat):
        called = flat[at + 1 : at + 2] == ["("]
        schema = flat[at - 2] if at > 1 and flat[at - 1] == "." else ""
        asked = called or word.startswith(("current_", "local"))
        if word in CLOCKS and asked and schema in {"", "pg_catalog"}:
            yield f"the clock is kagzi.now(), not {word}"
        if updates and word in VOLATILE and called:
            yield f"{word}() is volatile and stands in an UPDATE; make the value in the process"


def _writes(scope: list[Node]) -> Iterator[str]:
    if scope[0] in UNREAD:
        yield f"{scope[0]} cannot be held to one namespace"
    for at, node in enumerate(scope):
        before, rest = (scope[at - 1] if at else ""), scope[at + 1 :]
        if node == "update" and before not in ("for", "key", "do", "on"):
            yield from _narrowed("UPDATE", rest)
        elif node == "delete" and rest[:1] == ["from"]:
            yield from _narrowed("DELETE", rest[1:])
        elif node == "insert" and rest[:1] == ["into"]:
            yield from _inserted(rest[1:])


def _narrowed(verb: str, rest: list[Node]) -> Iterator[str]:
    relation, rest = _relation(rest)
    if not _names_one(until(after(rest, "where"), "returning"), relation.handle):
        yield f"{verb} of {relation.table} has no `{relation.handle}.namespace = :namespace`"


def _inserted(rest: list[Node]) -> Iterator[str]:
    relation, rest = _relation(rest)
    columns = [words(column) for column in split(rest[0], ",")] if rest and isinstance(rest[0], list) else []
    if ["namespace"] not in columns:
        yield f"INSERT into {relation.table} does not name the column namespace"
        return
    place = columns.index(["namespace"])
    rows = list(_rows(until(rest[1:], "conflict", "returning")))
    if not rows or not all(len(row) > place and GIVEN.fullmatch(" ".join(words(row[place]))) for row in rows):
        yield f"INSERT into {relation.table} does not give :namespace as its namespace"


def _rows(source: list[Node]) -> Iterator[list[list[Node]]]:
    """What an INSERT inserts: the tuples of VALUES, or the select list of every branch of a SELECT."""
    if "values" in source:
        for node in after(source, "values"):
            if isinstance(node, list):
                yield split(node, ",")
        return
    for at, node in enumerate(source):
        if node == "select":
            yield split(until(source[at + 1 :], "from", *CLAUSES, "except", "intersect"), ",")


def _locks(scope: list[Node], ctes: set[str]) -> Iterator[str]:
    for at, node in enumerate(scope):
        if node != "for" or scope[at + 1 : at + 2] not in (["update"], ["no"], ["share"], ["key"]):
            continue
        begin = max((start for start in range(at) if scope[start] == "select"), default=0)
        source = _source(scope[begin:at])
        clause = until(scope[at + 1 :], "nowait", "skip", "for")
        chosen = [word for word in after(clause, "of") if isinstance(word, str)]
        conditions = [after(scope[begin:at], "where"), *_on(source)]
        for relation in _relations(source):
            if (chosen and relation.handle not in chosen) or relation.table in ctes:
                continue
            if relation.table is None:
                yield f"a lock through the subquery {relation.handle} cannot be read; lock inside it"
            elif not any(_names_one(until(part, *CLAUSES[1:]), relation.handle) for part in conditions):
                yield f"a lock on {relation.table} has no `{relation.handle}.namespace = :namespace`"


def _source(select: list[Node]) -> list[Node]:
    """The FROM clause of a SELECT; the `from` of IS DISTINCT FROM is none."""
    for at, node in enumerate(select):
        if node == "from" and select[at - 1] != "distinct":
            return until(select[at + 1 :], *CLAUSES)
    return []


def _on(source: list[Node]) -> Iterator[list[Node]]:
    """The ON conditions of a FROM clause, where they filter: an outer join keeps the rows they refuse."""
    if OUTER.isdisjoint(word for word in source if isinstance(word, str)):
        for at, node in enumerate(source):
            if node == "on":
                yield until(source[at + 1 :], *JOINS)


def _relations(source: list[Node]) -> Iterator[Relation]:
    for at in range(len(source)):
        if at and source[at - 1] not in ("join", ","):
            continue
        item = source[at:]
        while item and item[0] in ("lateral", "only"):
            item = item[1:]
        if item and isinstance(item[0], list):
            alias = item[2:3] if item[1:2] == ["as"] else item[1:2]
            yield Relation(None, str(alias[0]) if alias else "")
        elif item and not _is_call(item):
            yield _relation(item)[0]


def _is_call(item: list[Node]) -> bool:
    name = 3 if item[1:2] == ["."] else 1
    return len(item) > name and isinstance(item[name], list)


def _relation(nodes: list[Node]) -> tuple[Relation, list[Node]]:
    """Read `[only] [schema.]table [[as] alias]`; the answer holds what follows."""
    rest = nodes[1:] if nodes[:1] == ["only"] else nodes
    length = 3 if rest[1:2] == ["."] else 1
    name, rest = words(rest[:length]), rest[length:]
    if rest[:1] == ["as"]:
        rest = rest[1:]
    if rest and isinstance(rest[0], str) and rest[0] not in NO_ALIAS and rest[0].isidentifier():
        return Relation("".join(name), rest[0]), rest[1:]
    return Relation("".join(name), name[-1] if name else ""), rest


def _names_one(condition: list[Node], handle: str) -> bool:
    """Whether a condition holds only where the namespace of `handle` equals the parameter."""
    if "or" in condition:
        return False
    for part in split(condition, "and"):
        if len(part) == 1 and isinstance(part[0], list) and _names_one(part[0], handle):
            return True
        found = EQUALITY.fullmatch(" ".join(words(part)))
        if found and (found["left"] or found["right"] or handle) == handle:
            return True
    return False


def _cte_names(nodes: list[Node]) -> set[str]:
    """The names a WITH gives: a lock on one locks nothing."""
    names: set[str] = set()
    for scope in statements(nodes):
        for at, node in enumerate(scope):
            body = [word for word in scope[at + 1 : at + 4] if word not in ("not", "materialized")]
            if node == "as" and body and isinstance(body[0], list):
                name = [word for word in scope[max(at - 2, 0) : at] if isinstance(word, str)]
                names.update(name[-1:])
    return names
