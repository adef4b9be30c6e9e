"""When a producer runs, as it is declared: an interval, a cron expression or words, and a time zone. It is read here,
so that what cannot be kept is found before anything is deployed; the server counts the slots.
"""

from __future__ import annotations

from dataclasses import dataclass

from kagzi.protocol.v1.schedule_pb2 import ScheduleTiming
from kagzi.sdk import duration
from kagzi.sdk.duration import Duration
from kagzi.sdk.errors import ConfigError
from kagzi.timetable import Timetable, TimetableError, named_zone, read_cron, read_interval, read_text
from kagzi.timetable.timetable import EPOCH


@dataclass(frozen=True, slots=True)
class Timing:
    """Exactly one of `every`, `cron` and `text`; `problem` says when it is not."""

    every: Duration | None = None
    cron: str | None = None
    text: str | None = None
    # The server's setting when empty.
    timezone: str = ""

    @property
    def zone(self) -> str:
        """Where it lives: the zone its words name, else the one beside them."""
        return (named_zone(self.text) if self.text is not None else None) or self.timezone

    def problem(self) -> str:
        """What is wrong with it; empty when it can be kept."""
        try:
            self.read()
        except (ConfigError, TimetableError) as error:
            return str(error)
        return ""

    def read(self) -> Timetable:
        """The slots it means. ConfigError or TimetableError when it means none."""
        given = [name for name in ("every", "cron", "text") if getattr(self, name) is not None]
        if len(given) != 1:
            said = " and ".join(given) or "none of them"
            raise ConfigError(f"a producer runs by one of every, cron and text, and this one has {said}")
        for name in ("cron", "text", "timezone"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ConfigError(f"{name}={value!r:.80} is no text")
        timezone = self.timezone or "UTC"
        # Also where an interval has no use for it: a slip is found now, not when it becomes a cron expression.
        read_cron("@daily", timezone)
        if self.every is not None:
            return read_interval(duration.parse(self.every), EPOCH)
        if self.cron is not None:
            return read_cron(self.cron, timezone)
        assert self.text is not None
        return read_text(self.text, timezone)

    def wire(self) -> ScheduleTiming:
        """As it is deployed; words have become what they mean."""
        timetable = self.read()
        if timetable.every is not None:
            return ScheduleTiming(every_ms=duration.milliseconds(timetable.every))
        return ScheduleTiming(cron=timetable.cron or "")
