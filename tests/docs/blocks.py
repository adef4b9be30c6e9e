"""The blocks of the documents, by what is done with them. ```` ```python ```` is a whole program or a module of
declarations and is run; ```` ```python fragment ```` is a few lines out of one, and is run in their place; ```` ```sh
```` is run as a script; ```` ```console ```` needs what tests do not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """Code, where it stands, in which language, and what is said behind that."""

    path: Path
    line: int
    language: str
    mark: str
    code: str

    @property
    def name(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def documents() -> list[Path]:
    """The documents for users."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]


def blocks(path: Path, language: str | None = "python") -> Iterator[Block]:
    """The blocks of a document in a language, or all of them, in order."""
    text = path.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        if language in (None, found[1]):
            yield Block(path, text.count("\n", 0, found.start()) + 2, found[1], found[2].strip(), found[3])


def of(name: str, language: str, mark: str = "") -> list[str]:
    """The code of a document's blocks of one kind."""
    return [block.code for block in blocks(ROOT / name, language) if block.mark == mark]
