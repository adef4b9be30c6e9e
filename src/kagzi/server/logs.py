"""Logs: one line of JSON an event on stderr, with its event, level, time and, where they are known,
namespace, run and worker. What libraries log takes the same way. Payloads, keys and database URLs never get
here: their fields are blanked by name, and what errors quote of them is cut from every text.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Literal

import structlog
from structlog.typing import Processor

Format = Literal["json", "console"]
Level = Literal["debug", "info", "warning", "error"]

_BLANKED = "(not logged)"
_PRIVATE = frozenset(
    {
        "payload",
        "input",
        "output",
        "data",
        "state",
        "body",
        "api_key",
        "key",
        "secret",
        "password",
        "authorization",
    }
    | {"url", "db_url", "listen_url", "dsn", "claim_token", "token"}
)
# What asyncpg and PostgreSQL quote in their messages is a user's: values of parameters and whole rows.
_QUOTED = (
    (re.compile(r"\bpostgres(?:ql)?://[^\s'\"]+", re.IGNORECASE), "postgresql://" + _BLANKED),
    (re.compile(r"(invalid input for query argument \$\d+).*"), r"\1: " + _BLANKED),
    (re.compile(r"(DETAIL|CONTEXT): .*"), r"\1: " + _BLANKED),
)


def configure(form: Format = "json", level: Level = "info") -> None:
    """Sets up the logs of this process, those of libraries included."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        private,
    ]
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, _renderer(form)],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, private, _renderer(form)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Below warnings libraries speak of their own insides.
    root.setLevel(max(number, logging.WARNING))


def private(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Blanks what must not be logged."""
    for name, value in event.items():
        if name in _PRIVATE:
            event[name] = _BLANKED
        elif isinstance(value, str):
            event[name] = without_secrets(value)
    return event


def without_secrets(text: str) -> str:
    """A text of an error without database URLs and without what it quotes of rows and parameters."""
    for pattern, instead in _QUOTED:
        text = pattern.sub(instead, text)
    return text


def _renderer(form: Format) -> Processor:
    if form == "console":
        return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    return structlog.processors.JSONRenderer()
