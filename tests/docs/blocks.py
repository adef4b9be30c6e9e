"""The Python blocks of the documents. ```` ```python ```` is a whole program or a module of declarations and is run;
```` ```python fragment ```` is a few lines out of one and is compiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```python([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """Code, where it stands, and what is said behind `python`."""

    path: Path
    line: int
    mark: str
    code: str

    @property
    def name(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def documents() -> list[Path]:
    """The documents for users."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]


def blocks(path: Path) -> Iterator[Block]:
    """The Python blocks of a document, in order."""
    text = path.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        yield Block(path, text.count("\n", 0, found.start()) + 2, found[1].strip(), found[2])
