"""An automation as a graph: handlers publish to topics, topics feed handlers. Nodes stand in columns by how far they
are from where events begin; what leads back is drawn below. Places are pixels: a graph too wide for its page scrolls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDE, HIGH = 152, 46
_COLUMN, _ROW, _EDGE = 192, 64, 12
# Of a name; what is cut is in the node's title.
_LETTERS = 19


@dataclass(frozen=True, slots=True)
class Node:
    """A handler or a topic."""

    name: str
    kind: str
    tone: str
    sub: str
    x: int
    y: int

    @property
    def text(self) -> str:
        """Its name, as far as there is room."""
        return self.name if len(self.name) <= _LETTERS else f"{self.name[: _LETTERS - 1]}…"


@dataclass(frozen=True, slots=True)
class Graph:
    """The whole picture."""

    nodes: Sequence[Node]
    # Paths from the right side of a node to the left side of another.
    edges: Sequence[str]
    width: int
    height: int
    said: str


def graph(automation: Mapping[str, Any]) -> Graph:
    """The picture of an automation as the API describes it."""
    handlers = {each["definition"]["name"]: each for each in automation["handlers"]}
    edges = [
        (("topic", topic), ("handler", name))
        for name, each in handlers.items()
        for topic in each["definition"]["subscribes"]
    ] + [
        (("handler", name), ("topic", topic))
        for name, each in handlers.items()
        for topic in each["definition"]["publishes"]
    ]
    topics = sorted({name for edge in edges for kind, name in edge if kind == "topic"})
    keys = [("handler", name) for name in handlers] + [("topic", name) for name in topics]
    columns = _columns(keys, edges)
    places = _places(keys, columns)
    nodes = [_node(key, places[key], handlers, automation) for key in keys]
    height = max((y for _, y in places.values()), default=0) + HIGH + _EDGE
    said = f"{len(handlers)} handlers and {len(topics)} topics"
    return Graph(
        nodes=nodes,
        edges=[_path(places[one], places[other], height) for one, other in edges],
        width=max((x for x, _ in places.values()), default=0) + WIDE + _EDGE,
        # What leads back runs below everything.
        height=height + (24 if any(places[one][0] >= places[other][0] for one, other in edges) else 0),
        said=said,
    )


_Key = tuple[str, str]


def _columns(keys: Sequence[_Key], edges: Sequence[tuple[_Key, _Key]]) -> dict[_Key, int]:
    """How many steps each is from a beginning, the long way; a circle is cut where it closes."""
    before: dict[_Key, list[_Key]] = {key: [] for key in keys}
    for one, other in edges:
        before[other].append(one)
    found: dict[_Key, int] = {}

    def depth(key: _Key, path: tuple[_Key, ...]) -> int:
        if key not in found:
            found[key] = max(
                (depth(each, (*path, key)) + 1 for each in before[key] if each not in (*path, key)), default=0
            )
        return found[key]

    for key in keys:
        depth(key, ())
    return found


def _places(keys: Sequence[_Key], columns: Mapping[_Key, int]) -> dict[_Key, tuple[int, int]]:
    rows: dict[int, int] = {}
    most = max((list(columns.values()).count(column) for column in columns.values()), default=0)
    made = {}
    for key in keys:
        column = columns[key]
        row = rows.get(column, 0)
        rows[column] = row + 1
        # Columns of few nodes stand in the middle.
        shift = (most - list(columns.values()).count(column)) * _ROW // 2
        made[key] = (_EDGE + column * _COLUMN, _EDGE + row * _ROW + shift)
    return made


def _node(key: _Key, place: tuple[int, int], handlers: Mapping[str, Any], automation: Mapping[str, Any]) -> Node:
    kind, name = key
    if kind == "topic":
        waiting = [each for each in automation["backlog"] if each["topic"] == name]
        counts = {word: sum(each[word] for each in waiting) for word in ("pending", "reserved")}
        said = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)
        return Node(name, "topic", "", said or "nothing pending", *place)
    handler = handlers[name]
    live, blocked = automation["live_run"], automation["blocked"]
    tone = ""
    if live and live["handler"] == name:
        tone = "busy"
    if blocked and blocked["handler"] == name:
        tone = "bad"
    producer = handler["definition"]["kind"] == "PRODUCER"
    return Node(
        name, "producer" if producer else "consumer", tone, handler["words"] if producer else "consumer", *place
    )


def _path(one: tuple[int, int], other: tuple[int, int], height: int) -> str:
    x, y = one[0] + WIDE, one[1] + HIGH // 2
    to_x, to_y = other[0] - 7, other[1] + HIGH // 2
    if to_x > x:
        middle = (x + to_x) // 2
        return f"M{x} {y}C{middle} {y} {middle} {to_y} {to_x} {to_y}"
    low = height + 12
    down = f"M{x} {y}C{x + 40} {y} {x + 40} {low} {x} {low}"
    return f"{down}L{to_x} {low}C{to_x - 40} {low} {to_x - 40} {to_y} {to_x} {to_y}"
