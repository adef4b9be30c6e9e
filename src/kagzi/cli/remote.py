"""What commands share that ask a server: where it is, and how its answers are told. An error is one line with what to
do next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from kagzi.cli.problems import FAILED, UNANSWERED, USAGE
from kagzi.cli.suggestions import NAMESPACES

if TYPE_CHECKING:
    from kagzi.sdk.sync import SyncClient

Url = Annotated[str | None, typer.Option(help="The servers (KAGZI_URL), as a:50051,b:50051; else the local one.")]
Namespace = Annotated[
    str | None, typer.Option(help='The namespace (KAGZI_NAMESPACE); else "default".', autocompletion=NAMESPACES)
]
Json = Annotated[bool, typer.Option("--json", help="Answer as JSON.")]
Limit = Annotated[int, typer.Option(help="At most so many.", min=1)]

# A person waits: long enough for a server that restarts, not for one that is not there.
PATIENCE = "5s"


@contextmanager
def reached(url: str | None, namespace: str | None) -> Iterator[SyncClient]:
    """A client for one command; ends the command with a line when something known goes wrong."""
    from kagzi.sdk.sync import SyncClient

    with answered(), SyncClient(url, namespace=namespace, patience=PATIENCE) as client:
        yield client


@contextmanager
def answered() -> Iterator[None]:
    """Ends the command with a line, and a code that scripts can use, when a server says no or says nothing."""
    from kagzi.cli.wording import spoken
    from kagzi.sdk.errors import ConfigError, InvalidArgument, KagziError, Unavailable

    try:
        yield
    except (ConfigError, InvalidArgument) as error:
        end(spoken(error), USAGE)
    except Unavailable as error:
        end(spoken(error), UNANSWERED)
    except KagziError as error:
        end(spoken(error), FAILED)


def end(message: str, code: int = USAGE) -> NoReturn:
    """Ends the command with a line on stderr."""
    typer.secho(f"error: {' '.join(message.split())}", fg="red", err=True)
    raise typer.Exit(code)


def document(option: str, text: str | None) -> Any:
    """What an option gives as JSON."""
    import json

    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        end(f"{option} is no JSON ({error}): quote it for the shell, as {option} '{{\"id\": 7}}'")


def moment(option: str, text: str | None) -> datetime | None:
    """What an option gives as a time."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = datetime.min  # noqa: DTZ901 - no time of anybody's
    if found.tzinfo is None:
        end(f"{option} {text!r} is no time with a zone: write it as 2026-06-01T12:00Z or 2026-06-01T14:00+02:00")
    return found


def pairs(option: str, given: list[str] | None, example: str = "customer=7") -> dict[str, str] | None:
    """What a repeated option gives as names and values; None when it was not given."""
    if not given:
        return None
    wrong = [text for text in given if "=" not in text]
    if wrong:
        end(f"{option} {wrong[0]!r} is no pair: write it as {option} {example}")
    return dict(text.split("=", 1) for text in given)


def plain(value: Any) -> Any:
    """A value as JSON has it: times as ISO, durations as seconds."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Enum):
        return value.value
    return str(value)
