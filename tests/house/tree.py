"""Walks the files of the project and judges them by path and text, as functions from facts to complaints.

What git ignores (environments, caches, databases) is no part of the project. What is not text is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "kagzi"
MAX_LINES = 500

SKIPPED = {".git", ".venv", "__pycache__", "build", "dist", ".hypothesis", ".idea", ".vscode", ".kagzi"}
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")
VAGUE = re.compile(r"(util|helper|common|manager|base|misc)(s|es)?")

# Written so that no pattern finds itself in this file.
REGISTRIES = re.compile(
    r"pypi\.org|pythonhosted\.org|npmjs\.(org|com)|index[-_]url|find[-_]links|trusted[-_]host|/simple/?(\s|$)"
    r"|[\"']resolved[\"']\s*:\s*[\"']http|registry\s*=\s*[\"'{]*\s*http",
    re.IGNORECASE,
)
WORKPLACE = re.compile(
    r"(?<!user[-_ ])\b(?:sub)?[a]gents?\b|\bassistants?\b|\blanguage\s+models?\b"
    r"|\b(this|last|next|another|previous) session\b|/work/(main|shared)\b"
    r"|\bshared/(design|seeds|sketches|peers|hooks)\b",
    re.IGNORECASE,
)


def files(root: Path = ROOT) -> Iterator[Path]:
    """Find every file of the project."""
    for path in sorted(root.iterdir()):
        if path.name in SKIPPED or path.name.endswith(("_cache", ".egg-info")):
            continue
        if path.is_dir():
            yield from files(path)
        else:
            yield path


def is_generated(path: Path) -> bool:
    """Whether a file was made from a `.proto`."""
    return GENERATED.search(path.name) is not None


def too_long(path: Path) -> bool:
    """Whether a file has reached the length at which it should have been split."""
    return len(path.read_text(encoding="utf-8").splitlines()) >= MAX_LINES


def is_vague(path: Path) -> bool:
    """Whether a module's name says nothing about what is inside."""
    return VAGUE.fullmatch(path.stem.strip("_")) is not None


def forbidden(text: str) -> list[str]:
    """Find addresses of package registries and talk about how the project is made."""
    return [found[0] for pattern in (REGISTRIES, WORKPLACE) for found in pattern.finditer(text)]


def text_of(path: Path) -> str:
    """Read a file of text; one of bytes is empty."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""
