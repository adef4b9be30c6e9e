"""What commands show: tables, times, colours and JSON, all of one look. What users wrote is text and never markup.
Where nobody looks (a pipe, a file) a table is as wide as it needs to be and has no colour.
"""

from __future__ import annotations

import dataclasses
import json as jsonlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from kagzi.cli.remote import plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

# By tone of a status, as on the pages.
_COLOURS = {"good": "green", "busy": "cyan", "rest": "blue", "wait": "yellow", "bad": "red", "gone": "dim"}
# Wide enough for any table of ours.
_UNBOUNDED = 1_000
# What is broken keeps room for a word.
_WORD = 8
_NARROW = 100


def console(*, err: bool = False) -> Console:
    """Where a command writes."""
    from rich.console import Console

    made = Console(stderr=err, highlight=False)
    return made if made.is_terminal else Console(stderr=err, highlight=False, width=_UNBOUNDED)


def narrow() -> bool:
    """Whether a person looks at a screen that has no room for everything."""
    return console().width < _NARROW


def table(*columns: str, rows: Iterable[Sequence[Any]], wraps: Sequence[str] = ()) -> Table:
    """A table; a column in which nothing stands is left out. Only the columns in `wraps` are broken where the screen is
    narrow: an id that is cut is no use to anybody.
    """
    from rich.table import Table

    found = [list(row) for row in rows]
    kept = [at for at, _ in enumerate(columns) if any(cell(row[at]).plain for row in found)]
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for at in kept:
        numbers = all(isinstance(row[at], int | float) for row in found)
        wrap = columns[at] in wraps
        made.add_column(
            columns[at],
            justify="right" if numbers else "left",
            no_wrap=not wrap,
            min_width=_WORD if wrap else None,
            overflow="fold",
        )
    for row in found:
        made.add_row(*(cell(row[at]) for at in kept))
    return made


def facts(*known: tuple[str, Any]) -> Table:
    """Names and values, one pair a line; what has no value is left out."""
    from rich.table import Table

    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in known:
        if value is not None and value != "":
            made.add_row(name, cell(value))
    return made


def cell(value: Any) -> Text:
    """A value as text, never as markup."""
    from rich.text import Text

    if isinstance(value, Text):
        return value
    if isinstance(value, int | float):
        return Text(f"{value:,}")
    return Text("" if value is None else str(value))


def status(name: str) -> Text:
    """A status in its colour."""
    from rich.text import Text

    from kagzi.dashboard.words import TONES

    return Text(str(name), style=_COLOURS[TONES[name]] if name in TONES else "")


def show(*parts: RenderableType) -> None:
    """Prints, with an empty line between."""
    to = console()
    with to.capture() as drawn:
        for number, part in enumerate(parts):
            if number:
                to.print()
            to.print(part)
    # A table fills its lines with spaces; in a file they are in the way.
    text = drawn.get()
    typer.echo(text if to.is_terminal else "\n".join(map(str.rstrip, text.split("\n"))), nl=False)


def print_json(document: Any) -> None:
    """Prints a document as JSON."""
    typer.echo(jsonlib.dumps(document, indent=2, default=plain, ensure_ascii=False))


def moment(at: datetime | str | None) -> str:
    """A time as it is here; of the API as text."""
    if isinstance(at, str):
        at = datetime.fromisoformat(at)
    return "" if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def clock(at: datetime | str | None) -> str:
    """A time in a table: as short as it can be understood today."""
    if not at:
        return ""
    found = (datetime.fromisoformat(at) if isinstance(at, str) else at).astimezone()
    now = datetime.now().astimezone()
    if found.date() == now.date():
        return found.strftime("%H:%M:%S")
    return found.strftime("%m-%d %H:%M" if found.year == now.year else "%Y-%m-%d")


def short(text: str, most: int = 60) -> str:
    """The first line of a text, cut where it is too long."""
    line = text.partition("\n")[0]
    return line if len(line) <= most else f"{line[: most - 1]}…"


def fields(one: Any) -> dict[str, Any]:
    """What a client was told, as JSON has it; what it keeps to itself is left out."""
    names = [field.name for field in dataclasses.fields(one) if not field.name.startswith("_")]
    return {name: _value(getattr(one, name)) for name in names}


def _value(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return fields(value)
    if isinstance(value, Mapping):
        return {name: _value(one) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_value(one) for one in value]
    return value


def ago(at: datetime | str | None) -> str:
    """How long ago something was, by this machine's clock."""
    from kagzi.dashboard.words import length

    if not at:
        return ""
    found = datetime.fromisoformat(at) if isinstance(at, str) else at
    seconds = (datetime.now(UTC) - found).total_seconds()
    return "now" if seconds < 1 else f"{length(seconds * 1_000)} ago"


def span(start: datetime | str | None, finish: datetime | str | None) -> str:
    """How long something took; empty while it goes on."""
    from kagzi.dashboard.words import length

    if not start or not finish:
        return ""
    ends = [datetime.fromisoformat(at) if isinstance(at, str) else at for at in (start, finish)]
    return length((ends[1] - ends[0]).total_seconds() * 1_000)


@contextmanager
def progress(what: str, total: int | None) -> Iterator[tuple[Progress, Any]]:
    """A bar on stderr while something goes on; nothing where nobody looks."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    to = Console(stderr=True)
    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()]
    if total is not None:
        columns.insert(3, MofNCompleteColumn())
    with Progress(*columns, console=to, transient=True, disable=not to.is_terminal) as bar:
        yield bar, bar.add_task(what, total=total)
