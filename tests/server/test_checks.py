"""Every field of a request is refused by name, at the exact boundary, before anything happens."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from kagzi.protocol.v1.common_pb2 import ErrorDetail, OnConflict, Payload, RetryPolicy
from kagzi.protocol.v1.workflow_pb2 import ListWorkflowsRequest
from kagzi.server.api import checks, pages
from kagzi.store.errors import Refused

INVALID = ErrorDetail.INVALID_ARGUMENT
EXCEEDED = ErrorDetail.LIMIT_EXCEEDED
UUID = "0190b6f0-0000-7000-8000-00000000abcd"


def refusal(check: Callable[..., Any], *arguments: Any, **options: Any) -> ErrorDetail:
    with pytest.raises(Refused) as refused:
        check(*arguments, **options)
    return refused.value.detail


def test_a_name_of_255_bytes_is_taken_and_one_of_256_refused() -> None:
    assert checks.name("a" * 255, "task_queue") == "a" * 255
    detail = refusal(checks.name, "a" * 256, "task_queue")
    assert (detail.code, detail.field) == (EXCEEDED, "task_queue")


def test_the_length_of_a_name_is_counted_in_bytes() -> None:
    assert checks.name("ü" * 127, "version")
    assert refusal(checks.name, "ü" * 128, "version").code == EXCEEDED


@pytest.mark.parametrize("bad", ["a\0b", "a\nb", "a\x7fb", "a\x85b", "a\ud800b"])
def test_a_name_holds_neither_control_characters_nor_half_a_surrogate_pair(bad: str) -> None:
    detail = refusal(checks.name, bad, "workflow_type")
    assert (detail.code, detail.field) == (INVALID, "workflow_type")
    assert "character 2" in detail.message


def test_a_name_may_be_any_other_text() -> None:
    for good in ("a", "order ✓", "\N{GOTHIC LETTER AHSA}", "'; drop table kagzi.workflow_runs; --", "a\u200bb"):
        assert checks.name(good, "external_id") == good


def test_a_missing_name_takes_its_default_or_is_refused() -> None:
    assert checks.name("", "task_queue", default="default") == "default"
    assert checks.name("", "external_id", default="") == ""
    assert refusal(checks.name, "", "workflow_type").field == "workflow_type"


def test_an_empty_namespace_is_the_default_one() -> None:
    assert checks.namespace("") == "default"
    assert checks.namespace("shop") == "shop"
    assert refusal(checks.namespace, "a" * 300).field == "namespace"


def test_a_uuid_is_36_characters_and_comes_out_in_lower_case() -> None:
    assert checks.uuid(UUID.upper(), "run_id") == UUID
    assert checks.uuid("", "run_id", required=False) == ""
    for bad in ("", "x", UUID[:-1], UUID + "0", UUID.replace("-", ""), f"{{{UUID}}}", UUID + "\n", "g" + UUID[1:]):
        detail = refusal(checks.uuid, bad, "run.claim_token")
        assert (detail.code, detail.field) == (INVALID, "run.claim_token")


def test_a_duration_is_within_its_bounds() -> None:
    assert checks.duration_ms(0, "delay_ms") == 0
    assert checks.duration_ms(checks.TEN_YEARS_MS, "delay_ms") == checks.TEN_YEARS_MS
    for bad in (-1, checks.TEN_YEARS_MS + 1, 2**63 - 1, -(2**63)):
        assert refusal(checks.duration_ms, bad, "delay_ms").field == "delay_ms"
    assert refusal(checks.duration_ms, 0, "timeout_ms", minimum=1).field == "timeout_ms"
    assert refusal(checks.duration_ms, 60_001, "wait_ms", maximum=60_000).field == "wait_ms"


def test_a_time_is_cut_to_microseconds_and_lies_in_our_age() -> None:
    given = Timestamp(seconds=1_000_000_000, nanos=123_456_789)
    assert checks.timestamp(given, "start_at") == datetime(2001, 9, 9, 1, 46, 40, 123_456, tzinfo=UTC)
    for bad in (Timestamp(seconds=-1), Timestamp(seconds=2**40), Timestamp(nanos=-1), Timestamp(nanos=10**9)):
        assert refusal(checks.timestamp, bad, "start_at").field == "start_at"


def test_a_payload_of_2_mib_is_taken_and_one_byte_more_refused() -> None:
    checks.payload(Payload(data=b"x" * (2 * 1024 * 1024)), "input")
    detail = refusal(checks.payload, Payload(data=b"x" * (2 * 1024 * 1024 + 1)), "input")
    assert (detail.code, detail.field) == (EXCEEDED, "input")
    assert refusal(checks.payload, Payload(encoding="e" * 256), "input").field == "input.encoding"


def test_labels_are_32_at_most_and_names_themselves() -> None:
    many = {f"key{number}": "" for number in range(32)}
    assert checks.labels(many, "labels") == many
    assert refusal(checks.labels, {**many, "one-more": ""}, "labels").code == EXCEEDED
    assert refusal(checks.labels, {"": "x"}, "labels").field == "labels"
    assert refusal(checks.labels, {"x": "a" * 256}, "labels").code == EXCEEDED
    assert refusal(checks.labels, {"x": "a\0"}, "labels").field == "labels"


def test_free_text_loses_what_cannot_be_stored_and_keeps_its_lines() -> None:
    assert checks.text("a\0b\n\ud800c", "reason", 100) == "ab\n\N{REPLACEMENT CHARACTER}c"
    assert refusal(checks.text, "é" * 51, "reason", 100).code == EXCEEDED


def test_an_excerpt_is_cut_between_characters() -> None:
    assert checks.excerpt("é" * 50, 100) == "é" * 50
    cut = checks.excerpt("é" * 51, 100)
    assert cut == "é" * 48 + "…"
    assert len(cut.encode()) <= 100


def policy(attempts: int = 3, initial: int = 1_000, coefficient: float = 2.0, longest: int = 60_000) -> RetryPolicy:
    return RetryPolicy(
        maximum_attempts=attempts,
        initial_interval_ms=initial,
        backoff_coefficient=coefficient,
        maximum_interval_ms=longest,
    )


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (policy(attempts=-1), "maximum_attempts"),
        (policy(attempts=10_001), "maximum_attempts"),
        (policy(coefficient=0.99), "backoff_coefficient"),
        (policy(coefficient=math.nan), "backoff_coefficient"),
        (policy(coefficient=math.inf), "backoff_coefficient"),
        (policy(initial=-1), "initial_interval_ms"),
        (policy(initial=1_000, longest=999), "maximum_interval_ms"),
        (policy(longest=checks.TEN_YEARS_MS + 1), "maximum_interval_ms"),
    ],
)
def test_a_retry_policy_that_cannot_be_followed_is_refused(bad: RetryPolicy, field: str) -> None:
    detail = refusal(checks.retry, bad, "retry")
    assert (detail.code, detail.field) == (INVALID, f"retry.{field}")


def test_a_retry_policy_is_taken_as_it_is() -> None:
    for good in (policy(), policy(attempts=0), policy(initial=0, longest=0, coefficient=1.0)):
        assert checks.retry(good, "retry") is good


def test_an_enum_value_that_the_contract_does_not_know_is_refused_with_those_it_does() -> None:
    assert checks.enum(0, OnConflict, "on_conflict") == 0
    detail = refusal(checks.enum, 17, OnConflict, "on_conflict")
    assert detail.field == "on_conflict"
    assert "RETURN_EXISTING, REJECT, REPLACE" in detail.message
    assert refusal(checks.enum, 0, OnConflict, "on_conflict", required=True).field == "on_conflict"


@pytest.mark.parametrize("good", ["{}", "null", '"x"', '{"a": [1, -2.5e10, "é"]}', "0.0", "0e5", "[" * 99 + "]" * 99])
def test_a_json_document_comes_out_as_it_was_given(good: str) -> None:
    assert checks.json_document(good, "state_json", 1_000) == good


@pytest.mark.parametrize(
    "bad",
    [
        *("", "{", "NaN", "[Infinity]", '"\\u0000"', '"\\ud800"', '{"\\u0000": 1}', "1e999999", "1e-999999"),
        *("1" * 1_001, "0." + "1" * 1_001, "[" * 500 + "]" * 500, "[" * 100_000),
    ],
)
def test_a_json_document_that_postgresql_cannot_hold_is_refused(bad: str) -> None:
    detail = refusal(checks.json_document, bad, "state_json", 1_000_000)
    assert (detail.code, detail.field) == (INVALID, "state_json")


def test_a_json_document_has_its_size() -> None:
    assert checks.json_document('"' + "é" * 4 + '"', "state_json", 10)
    assert refusal(checks.json_document, '"' + "é" * 4 + '" ', "state_json", 10).code == EXCEEDED


def test_a_page_has_50_rows_unless_told_and_100_at_most() -> None:
    assert checks.page(0, "", "scope") == checks.Page(50, ())
    assert checks.page(100, "", "scope").size == 100
    for bad in (-1, 101):
        assert refusal(checks.page, bad, "", "scope").field == "page_size"


def test_a_page_token_leads_on_in_the_list_it_came_from() -> None:
    request = ListWorkflowsRequest(workflow_type="order", page_size=10)
    token = checks.page_token(checks.scope(request, "default"), (1_700_000_000_000_000, UUID))
    request.page_token, request.page_size, request.namespace = token, 20, "default"
    page = checks.page(request.page_size, request.page_token, checks.scope(request, "default"))
    assert page == checks.Page(20, (1_700_000_000_000_000, UUID))
    assert token.isascii()
    assert "=" not in token


def test_a_page_token_from_elsewhere_is_refused() -> None:
    here = checks.scope(ListWorkflowsRequest(workflow_type="order"), "default")
    elsewhere = [
        checks.scope(ListWorkflowsRequest(workflow_type="other"), "default"),
        checks.scope(ListWorkflowsRequest(workflow_type="order"), "shop"),
    ]
    tokens = [checks.page_token(scope, ("a", 1)) for scope in elsewhere]
    mine = checks.page_token(here, ("a", 1))
    for bad in [*tokens, mine[:-1], mine + "A", "A" + mine[1:], "x", "é", "====", "\0", "A" * 16]:
        detail = refusal(checks.page, 10, bad, here)
        assert (detail.code, detail.field) == (INVALID, "page_token")


@pytest.mark.parametrize(
    "key", [b"{", b"7", b"null", b"[]", b'{"a":1}', b"[null]", b"[[1]]", b"[1.5]", b"[" * 100_000, b"\xff"]
)
def test_a_page_token_that_somebody_made_around_no_key_is_refused(key: bytes) -> None:
    made = base64.urlsafe_b64encode(pages._digest("scope", key) + key).decode().rstrip("=")
    detail = refusal(checks.page, 10, made, "scope")
    assert (detail.code, detail.field) == (INVALID, "page_token")
