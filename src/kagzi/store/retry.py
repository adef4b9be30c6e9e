"""Whether and when something that failed is tried again. Pure: the caller counts the failures under the run's lock."""

from __future__ import annotations

from kagzi.protocol.v1.common_pb2 import RetryPolicy

_DAY_MS = 86_400_000


# For whoever brought no policy; each unset field of one that was brought is taken from here too.
DEFAULT = RetryPolicy(
    maximum_attempts=3, initial_interval_ms=1_000, backoff_coefficient=2.0, maximum_interval_ms=60_000
)


def delay_ms(policy: RetryPolicy | None, failures: int) -> int | None:
    """The delay after the given number of failures, this one included; None when it was the last attempt."""
    policy = policy or DEFAULT
    if failures >= (policy.maximum_attempts or DEFAULT.maximum_attempts):
        return None
    initial = policy.initial_interval_ms or DEFAULT.initial_interval_ms
    coefficient = policy.backoff_coefficient or DEFAULT.backoff_coefficient
    maximum = policy.maximum_interval_ms or DEFAULT.maximum_interval_ms
    try:
        grown = initial * coefficient ** (failures - 1)
    except OverflowError:
        return maximum
    return int(min(grown, maximum, 3650 * _DAY_MS))
