"""Logs: lines of JSON with what happened to whom, and nothing that is a user's or a secret."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from kagzi.server import logs

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def _logs_of_the_tests_return() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_an_event_is_a_line_of_json_with_its_subjects(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    structlog.get_logger("test").info("run_expired", namespace="shop", run="r1", worker="w1")
    [line] = written(capsys)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "run_expired", "level": "info", "namespace": "shop", "run": "r1", "worker": "w1"}


def test_what_is_below_the_level_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json", "warning")
    log = structlog.get_logger("test")
    log.debug("a")
    log.info("b")
    log.warning("c")
    assert [line["event"] for line in written(capsys)] == ["c"]


def test_payloads_keys_and_database_urls_are_blanked_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    structlog.get_logger("test").info("odd", input=SECRET.encode(), api_key=SECRET, db_url=SECRET, claim_token=SECRET)
    [line] = written(capsys)
    assert SECRET not in json.dumps(line)


@pytest.mark.parametrize(
    "quoted",
    [
        f"cannot reach postgresql://me:{SECRET}@db/kagzi",
        f"a row is bad\nDETAIL:  Failing row contains ({SECRET}).\nHINT: none",
        f"invalid input for query argument $1: '{SECRET}' (expected bytes)",
    ],
)
def test_what_errors_quote_is_cut_also_where_a_library_logs(capsys: pytest.CaptureFixture[str], quoted: str) -> None:
    logs.configure()
    try:
        int(quoted)
    except ValueError:
        structlog.get_logger("test").exception("broken", reason=quoted)
        logging.getLogger("asyncio").exception(quoted)
    ours, theirs = written(capsys)
    assert (ours["event"], theirs["logger"]) == ("broken", "asyncio")
    assert "ValueError" in ours["exception"]
    assert "ValueError" in theirs["exception"]
    assert SECRET not in json.dumps([ours, theirs])
