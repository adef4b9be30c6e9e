"""What the contract says of its own parts: the comments of the `.proto` files, by full name. They are the reference of
the HTTP API too, so that a field is explained in one place. A part without a comment has none here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files

_PACKAGE = "kagzi.v1"
_OPENS = re.compile(r"(?:service|message|enum|oneof) (\w+) \{")
_RPC = re.compile(r"rpc (\w+)\(")
_FIELD = re.compile(r"(?:optional |repeated )?(?:map<[^>]+>|[\w.]+) (\w+) = \d+;")


@cache
def comments() -> Mapping[str, str]:
    """By full name, as "kagzi.v1.WorkflowRun.run_id"."""
    folder = files("kagzi.protocol").joinpath("v1")
    sources = [path for path in folder.iterdir() if path.name.endswith(".proto")]
    return {name: text for path in sources for name, text in read(path.read_text(encoding="utf-8"))}


def read(source: str) -> Iterator[tuple[str, str]]:
    """The names of one file that have a comment, each with it."""
    within = [_PACKAGE]
    said: list[str] = []
    for line in map(str.strip, source.splitlines()):
        if line.startswith("//"):
            said.append(line.removeprefix("//").strip())
            continue
        opens = _OPENS.match(line)
        named = opens or _RPC.match(line) or _FIELD.match(line)
        if named and said:
            yield ".".join(part for part in (*within, named[1]) if part), " ".join(said)
        if opens and not line.endswith("}"):
            # The fields of a oneof are the message's.
            within.append("" if line.startswith("oneof") else opens[1])
        elif line == "}":
            within.pop()
        said = []
