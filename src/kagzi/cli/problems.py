"""What a command says when it cannot do its work: one line on stderr that tells what to do next, never a traceback and
never a database's address. A defect is not explained away: it keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

FAILED = 1
USAGE = 2
# No server answered, or it has too much to do: the same command may work later.
UNANSWERED = 3


@contextmanager
def explained() -> Iterator[None]:
    """Ends the command with a line and an exit code when something known goes wrong inside."""
    try:
        yield
    except BrokenPipeError:
        # Whoever read what we say has seen enough.
        raise
    except ImportError as error:
        _end(f"{error.name or error} is not installed: run `pip install 'kagzi[server,embedded]'`", FAILED)
    except Exception as error:
        known = _known(error)
        if known is None:
            raise
        _end(*known)


def _known(error: Exception) -> tuple[str, int] | None:
    import asyncpg

    from kagzi.dashboard.site import SiteError
    from kagzi.embedded import EmbeddedError
    from kagzi.server.listener import StartError
    from kagzi.server.settings import SettingsError
    from kagzi.store.errors import StoreError

    if isinstance(error, SettingsError):
        return str(error), USAGE
    if isinstance(error, StartError | StoreError | SiteError | EmbeddedError):
        return str(error), FAILED
    if isinstance(error, asyncpg.PostgresError | OSError):
        return f"the database cannot be used: {error}. Is KAGZI_DB_URL right, and does it run?", FAILED
    return None


def _end(message: str, code: int) -> None:
    from kagzi.server.logs import without_secrets

    typer.secho(f"error: {without_secrets(message)}", fg="red", err=True)
    raise typer.Exit(code)
