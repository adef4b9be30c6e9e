"""What the server says of a request, said to somebody who looks at a page: the names of the contract become the words
that stand on its forms. What people have written themselves, which is quoted, stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from google.protobuf.descriptor import Descriptor

from kagzi.dashboard import gateway
from kagzi.dashboard.api.table import ROUTES
from kagzi.dashboard.problems import Problem

# Where a form has another word than the name itself.
_WORDS = {
    "external_id": "the name of your own",
    "workflow_type": "the workflow",
    "task_queue": "the queue",
    "page_token": "the page that the address names",
    "timezone": "the time zone",
    "start_at": "the beginning",
    "end_at": "the end",
    "labels": "a label",
    "key.source": "the source of the input",
    "key.type": "the type of the input",
    "key.id": "the id of the input",
    "events": "the event",
}
# What a name ends with is of no interest where no other number, text or id is meant.
_ENDINGS = ("_id", "_ms", "_us", "_json", "_number")
_WRITTEN = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`"


def spoken(text: str) -> str:
    """A sentence with the words of the page."""
    return _pattern().sub(lambda found: word(found[1]) if found[1] else found[0], text)


def word(name: str) -> str:
    """What a field of the contract is called on a page."""
    last = re.sub(r"\[\d*\]", "", name)
    if last in _WORDS:
        return _WORDS[last]
    last = last.rpartition(".")[2]
    for ending in _ENDINGS:
        last = last.removesuffix(ending)
    return _WORDS.get(last, f"the {last.replace('_', ' ')}")


def on_page(problem: Problem) -> Problem:
    """A problem as a page tells it."""
    return Problem(
        problem.code,
        spoken(problem.detail),
        subject=problem.subject,
        field=word(problem.field) if problem.field else "",
        retry_after_ms=problem.retry_after_ms,
    )


@cache
def _pattern() -> re.Pattern[str]:
    """What was written, or a name of the contract: one of several words, or one that has another on pages."""
    names = {name for route in ROUTES for name in _names(gateway.method(route.rpc).input_type)}
    known = sorted({*(name for name in names if "_" in name), *_WORDS}, key=len, reverse=True)
    said = "|".join(re.escape(name) for name in known)
    return re.compile(rf"{_WRITTEN}|(?<![\w.=-])((?:\w+(?:\[\d*\])?\.)*(?:{said}))(?![\w=-])")


def _names(kind: Descriptor, depth: int = 3) -> Iterator[str]:
    for field in kind.fields:
        yield field.name
        if field.message_type is not None and depth:
            yield from _names(field.message_type, depth - 1)
