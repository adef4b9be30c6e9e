"""A fake outside world for automations: an inbox to read and a sheet to write, in a process of its own, over HTTP.

Everything it does goes into a log on disk first, so it remembers across crashes, and what really happened can be read
there: `GET /log`. It misbehaves when a request asks for that with `?fault=`:

    fail      answers 500 and has done nothing
    lost      does it and answers 500
    timeout   does it and answers only after `&seconds=` (30)
    crash     does it and dies without an answer
    duplicate answers everything twice (reading), or does it once and sees the request twice (writing)

    python -m examples.automations.outside --log /tmp/outside.log --port 8099

It uses nothing but Python's library.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections import Counter
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Log:
    """What happened, one JSON document a line. A line is in the file before anybody hears of it."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self.entries: list[dict[str, Any]] = []
        if path.exists():
            self.entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        self._counts = Counter(entry["kind"] for entry in self.entries)
        self._file = path.open("a", encoding="utf-8")

    def add(self, kind: str, **facts: Any) -> dict[str, Any]:
        """Writes something down, with its number among those of its kind and the time."""
        with self._lock:
            self._counts[kind] += 1
            entry = {"kind": kind, "number": self._counts[kind], "at": time.time(), **facts}
            self._file.write(json.dumps(entry) + "\n")
            # To the system, which keeps it when this process dies.
            self._file.flush()
            self.entries.append(entry)
            return entry

    def of(self, kind: str, **facts: Any) -> list[dict[str, Any]]:
        """All entries of a kind that hold these facts."""
        with self._lock:
            return [
                entry
                for entry in self.entries
                if entry["kind"] == kind and all(entry.get(name) == value for name, value in facts.items())
            ]


class Desk(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    log: Log

    def do_GET(self) -> None:
        """Reads mails after a number, rows by key, or the whole log."""
        path, asked = self._asked()
        if self._fails(asked):
            return
        found: list[dict[str, Any]]
        if path == "/mails":
            found = [mail for mail in self.log.of("mail") if mail["number"] > int(asked.get("after", 0))]
        elif path == "/rows":
            found = self.log.of("row", key=asked["key"]) if "key" in asked else self.log.of("row")
        else:
            found = list(self.log.entries)
        if asked.get("fault") == "duplicate":
            found = [entry for entry in found for _ in range(2)]
        self._answer(HTTPStatus.OK, found)

    def do_POST(self) -> None:
        """Takes a mail, a row or a mark, and writes it down."""
        path, asked = self._asked()
        facts = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self._fails(asked):
            return
        kind = path.strip("/").removesuffix("s")
        fault = asked.get("fault")
        entry = self.log.add(kind, **facts)
        if fault == "crash":
            os._exit(1)
        if fault == "duplicate":
            # As a proxy would that repeats a request: known by its key.
            self.log.add("repeat", of=entry["number"], key=facts.get("key"))
        if fault == "timeout":
            time.sleep(float(asked.get("seconds", 30)))
        status = HTTPStatus.INTERNAL_SERVER_ERROR if fault == "lost" else HTTPStatus.CREATED
        self._answer(status, entry)

    def _asked(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        return parts.path, {name: values[-1] for name, values in parse_qs(parts.query).items()}

    def _fails(self, asked: dict[str, str]) -> bool:
        if asked.get("fault") == "fail":
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "as you asked"})
            return True
        return False

    def _answer(self, status: HTTPStatus, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the log is on disk."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked may be gone by now."""


def main() -> None:
    """Serves until it is killed; says on which port."""
    parser = argparse.ArgumentParser(description="A fake outside world.")
    parser.add_argument("--log", type=Path, required=True, help="where to remember")
    parser.add_argument("--port", type=int, default=0, help="where to listen; any free one when 0")
    given = parser.parse_args()
    Desk.log = Log(given.log)
    server = _Server(("127.0.0.1", given.port), Desk)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
