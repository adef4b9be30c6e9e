"""Reads SQL far enough for the house rules: named queries, words, and what stands in which parentheses.

It knows strings, comments, casts and `:parameters`, so that none of them is mistaken for a word. It never
judges and it is no parser: PostgreSQL itself prepares every query in the tests of the store.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

# A word, or the nodes between a pair of parentheses.
Node: TypeAlias = "str | list[Node]"

NAME = re.compile(r"^--\s*name:\s*(?P<name>\S.*?)\s*$")
TOKEN = re.compile(
    r"""
      (?P<gap>    \s+ | --[^\n]* | /\*.*?\*/ )
    | (?P<quoted> e'(?:[^'\\]|''|\\.)*' | '(?:[^']|'')*' | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ )
    | (?P<ident>  "(?:[^"]|"")+" )
    | (?P<param>  (?<!:):[a-z_]\w* )
    | (?P<word>   ::|<>|[<>!]=|\|\||->>?|\w+|. )
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Query:
    """One named query of a file: `line` is where its name stands, `promise` the comment below the name."""

    name: str
    line: int
    promise: tuple[str, ...]
    body: str


def queries(text: str) -> tuple[str, list[Query]]:
    """Split a file into what stands before the first name, and its queries."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if NAME.match(line)]
    preamble = "\n".join(lines[: starts[0]] if starts else lines)
    ends = [*starts[1:], len(lines)]
    return preamble, [_query(lines[start:end], start + 1) for start, end in zip(starts, ends, strict=False)]


def _query(lines: list[str], line: int) -> Query:
    named = NAME.match(lines[0])
    body = lines[1:]
    count = next((number for number, text in enumerate(body) if not text.startswith("--")), len(body))
    promise = tuple(text.removeprefix("--").strip() for text in body[:count])
    return Query(named["name"] if named else "", line, promise, "\n".join(body[count:]))


def parse(text: str) -> list[Node]:
    """Turn SQL into words, in lower case, and nested lists for parentheses; strings become `''`."""
    root: list[Node] = []
    open_groups = [root]
    for found in TOKEN.finditer(text):
        if found["gap"]:
            continue
        word = "''" if found["quoted"] else found[0].strip('"').lower()
        if word == "(":
            group: list[Node] = []
            open_groups[-1].append(group)
            open_groups.append(group)
        elif word == ")" and len(open_groups) > 1:
            open_groups.pop()
        else:
            open_groups[-1].append(word)
    return root


def statements(nodes: list[Node]) -> list[list[Node]]:
    """List every scope of a query: what stands outside of parentheses, and the inside of each pair."""
    scopes = [part for part in split(nodes, ";") if part]
    for node in nodes:
        if isinstance(node, list):
            scopes.extend(statements(node))
    return scopes


def split(nodes: list[Node], separator: str) -> list[list[Node]]:
    """Cut a scope at a word; what is nested stays whole."""
    parts: list[list[Node]] = [[]]
    for node in nodes:
        if node == separator:
            parts.append([])
        else:
            parts[-1].append(node)
    return parts


def until(nodes: list[Node], *words: str) -> list[Node]:
    """Take the nodes before the first of `words`, or all of them."""
    end = next((number for number, node in enumerate(nodes) if node in words), len(nodes))
    return nodes[:end]


def after(nodes: list[Node], word: str) -> list[Node]:
    """Take the nodes behind the first `word`, or none."""
    return nodes[nodes.index(word) + 1 :] if word in nodes else []


def words(nodes: list[Node]) -> list[str]:
    """Flatten a scope; a parenthesis is a word again."""
    flat: list[str] = []
    for node in nodes:
        flat.extend(["(", *words(node), ")"] if isinstance(node, list) else [node])
    return flat
