"""Whatever is annotated comes back equal and of the same type."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kagzi.sdk import payload
from tests.sdk.annotated import ANYTHING, same, typed


@settings(
    max_examples=1_000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_every_annotated_value_comes_back_equal_and_of_the_same_type(data: st.DataObject) -> None:
    annotation, values = data.draw(typed())
    value = data.draw(values)
    encoded = payload.encode(value, annotation)
    assert same(payload.decode(encoded, annotation), value), encoded.data


@settings(max_examples=300, deadline=None)
@given(ANYTHING)
def test_values_without_an_annotation_come_back_as_they_were(value: Any) -> None:
    for annotation in (None, Any):
        assert same(payload.decode(payload.encode(value, annotation), annotation), value)
