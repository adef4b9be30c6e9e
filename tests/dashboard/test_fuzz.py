"""Every route of the HTTP API, tried with what its OpenAPI document allows and with what it forbids: no answer is a
defect of the server, and every answer looks as the document says.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.dashboard.place import Place

EXAMPLES = 4
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_finds_a_defect(place: Place, mode: GenerationMode) -> None:
    document = httpx.get(f"{place.url}/api/openapi.json", timeout=60).json()
    schema = schemathesis.openapi.from_dict(document)
    wrong: dict[str, str] = {}
    tried = 0
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()

        @settings(
            max_examples=EXAMPLES,
            database=None,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def attempt(case: Case[Any]) -> None:
            nonlocal tried
            tried += 1
            response = case.call(base_url=place.url, timeout=30)
            case.validate_response(response, checks=CHECKS)

        try:
            attempt()
        except Unsatisfiable:
            # A route that takes nothing cannot be given anything wrong.
            assert mode is GenerationMode.NEGATIVE
        except Exception as error:  # noqa: BLE001 - all routes are tried, then all that is wrong is told
            wrong[f"{operation.method.upper()} {operation.path}"] = str(error)[:1_500]
    print(f"{tried} requests")  # noqa: T201 - what was seen
    assert wrong == {}
