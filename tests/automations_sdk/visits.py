"""Visits to the fake outside: it in a process of its own, and requests to it that cost little."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.house.tree import ROOT


class Away(Exception):
    """The outside answered with an error, or not at all."""


@contextmanager
def outside(log: Path, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The outside's address and its process, which remembers in `log`."""
    command = [sys.executable, str(ROOT / "examples/automations/outside.py"), "--log", str(log), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}", process
        finally:
            process.kill()


async def visit(url: str, method: str, path: str, body: Any = None) -> Any:
    """One request, without a thread. Raises Away."""
    place = urlsplit(url)
    try:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
    except OSError as error:
        raise Away(str(error)) from error
    try:
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: outside\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        answer = await reader.read()
    except OSError as error:
        raise Away(str(error)) from error
    finally:
        writer.close()
    head_text, _, content = answer.partition(b"\r\n\r\n")
    if not head_text.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")):
        raise Away(head_text.partition(b"\r\n")[0].decode() or "no answer")
    return json.loads(content)


def log_of(url: str, kind: str) -> list[dict[str, Any]]:
    """What the outside says has happened."""
    with urllib.request.urlopen(f"{url}/log", timeout=30) as answer:  # noqa: S310 - the address is ours
        entries: list[dict[str, Any]] = json.load(answer)
    return [entry for entry in entries if entry["kind"] == kind]
