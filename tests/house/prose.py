"""Takes a design text apart into its sentences: one for each sentence of a paragraph or a bullet, one for each row of a
table. Headings and the heads of tables say nothing by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# A sentence ends at a full stop before something that can begin one; "kagzi.now()" and "5 s. Then" show both sides.
_END = re.compile(r"(?<=[.!?])(?:\*\*)?\)?\s+(?=[A-Z`*(▸\"“])")
_TABLE = re.compile(r"\|(.*)\|")


@dataclass(frozen=True, slots=True)
class Sentence:
    """What is said, and under which heading."""

    heading: str
    text: str


def sentences(markdown: str) -> list[Sentence]:
    """Every sentence of the text, in order."""
    return [
        Sentence(heading, text)
        for heading, block in _blocks(markdown)
        for text in _parts([block] if _TABLE.fullmatch(block) else _END.split(block))
    ]


def _parts(block: list[str]) -> list[str]:
    """A word or two at the head of a paragraph, as "Retries.", is the title of what follows."""
    parts = [text for text in map(_plain, block) if text]
    if len(parts) > 1 and len(parts[0].split()) <= 2:
        parts[:2] = [f"{parts[0]} {parts[1]}"]
    return parts


def _blocks(markdown: str) -> Iterator[tuple[str, str]]:
    """Paragraphs, bullets and rows, each on one line."""
    heading = ""
    gathered: list[str] = []
    rows = 0
    for line in [*markdown.splitlines(), ""]:
        text = line.strip()
        row = _TABLE.fullmatch(text) is not None
        rows = rows + 1 if row else 0
        if gathered and (not text or row or text.startswith(("#", "- "))):
            yield heading, " ".join(gathered)
            gathered = []
        if text.startswith("#"):
            heading = text.lstrip("# ")
        elif row:
            # The first row is the head and the second one a line below it.
            if rows > 2:
                yield heading, text
        elif text:
            gathered.append(text.removeprefix("- "))


def _plain(text: str) -> str:
    """Without marks of emphasis and with single spaces."""
    return " ".join(text.replace("*", "").replace("▸", "").replace("|", " | ").split()).strip("| ")
