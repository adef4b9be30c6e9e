"""How often a failed step or workflow is tried again, and how long to wait in between.

A Retry is only the user's wish, checked when it is written. The server decides from it, in the transaction
that records the failure; `delay` is the same formula for tests, docs and in-place waits.
"""

import math
from dataclasses import dataclass
from datetime import timedelta

from kagzi.sdk import duration
from kagzi.sdk.duration import Duration
from kagzi.sdk.errors import ConfigError

MOST_ATTEMPTS = 10_000


@dataclass(frozen=True, slots=True)
class Retry:
    """`max_attempts` tries in all. Before try n+1: `initial` x `backoff`^(n-1), at most `max_interval`."""

    max_attempts: int = 3
    initial: Duration = "1s"
    backoff: float = 2.0
    max_interval: Duration = "1m"

    def __post_init__(self) -> None:
        attempts, backoff = self.max_attempts, self.backoff
        if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= MOST_ATTEMPTS:
            raise ConfigError(
                f"Retry(max_attempts={attempts!r}) must be a whole number from 1 (no retry) to {MOST_ATTEMPTS}."
            )
        if isinstance(backoff, bool) or not isinstance(backoff, int | float) or not 1 <= backoff <= 1000:
            raise ConfigError(f"Retry(backoff={backoff!r}) must be a number from 1.0 (equal waits) to 1000.")
        # Normalised, so that two spellings of one policy are equal.
        object.__setattr__(self, "initial", _checked("initial", self.initial))
        object.__setattr__(self, "backoff", float(backoff))
        object.__setattr__(self, "max_interval", _checked("max_interval", self.max_interval))
        if self.initial_ms > self.max_interval_ms:
            raise ConfigError(
                f"Retry(initial={duration.format(self.initial)!r}) is longer than max_interval="
                f"{duration.format(self.max_interval)!r} and would be cut to it: give a larger max_interval."
            )

    @property
    def initial_ms(self) -> int:
        return duration.milliseconds(self.initial)

    @property
    def max_interval_ms(self) -> int:
        return duration.milliseconds(self.max_interval)

    def delay_ms(self, failed: int) -> int:
        """Milliseconds to wait after attempt number `failed` (counted from 1) has failed."""
        if failed < 1:
            raise ConfigError(f"Attempts are counted from 1, so there is no delay after attempt {failed}.")
        try:
            grown = self.initial_ms * self.backoff ** (failed - 1)
        except OverflowError:
            grown = math.inf if self.initial_ms else 0
        return int(min(grown, self.max_interval_ms))

    def delay(self, failed: int) -> timedelta:
        """The wait after attempt number `failed` (counted from 1) has failed."""
        return timedelta(milliseconds=self.delay_ms(failed))


def _checked(name: str, value: Duration) -> timedelta:
    try:
        return duration.parse(value)
    except ConfigError as error:
        raise ConfigError(f"Retry({name}=...): {error}") from None
