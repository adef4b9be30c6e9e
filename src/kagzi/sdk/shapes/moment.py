"""Shapes of `datetime` and `time`, which may carry a time zone.

msgspec writes offsets of whole minutes and nothing else: it cuts seconds from historical offsets and forgets
the name of a zone, after which a day added across a change of clocks lands an hour off, and a moment in the
doubled hour is equal to nothing. So a ZoneInfo is written as RFC 9557 has it,
`2025-10-26T02:30:00+01:00[Europe/Berlin]`, and comes back as that zone. Other tzinfo classes come back as the
fixed offset they had.
"""

import re
from datetime import UTC, datetime, time, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from kagzi.sdk.shapes.shape import Misfit, Shape

_MINUTE = timedelta(minutes=1)
_ZONED = re.compile(r"([^\[\]]+)\[([^\[\]]+)\]")
_FINE_OFFSET = re.compile(r"(.+)([+-])(\d\d):(\d\d):(\d\d)(?:\.(\d{6}))?", re.ASCII)


class Moment(Shape):
    """A `datetime`, or with `time` as its class a time of day."""

    __slots__ = ("cls",)
    kinds = frozenset(["str"])
    native = True

    def __init__(self, cls: type[datetime] | type[time]) -> None:
        self.name = cls.__name__
        self.cls = cls

    def fits(self, value: Any) -> bool:
        return type(value) is self.cls and _is_simple(value.tzinfo)

    def lower(self, value: Any) -> Any:
        if type(value) is not self.cls:
            raise self.misplaced(value)
        zone = value.tzinfo
        if _is_simple(zone):
            return value
        if isinstance(zone, ZoneInfo) and zone.key:
            if zone.key == "UTC":
                return value.replace(tzinfo=UTC)
            return f"{value.isoformat()}[{zone.key}]"
        offset = value.utcoffset()
        if offset is None:
            raise Misfit(f"the {self.name} has a tzinfo without an offset. Use zoneinfo.ZoneInfo or no tzinfo")
        return value.replace(tzinfo=timezone(offset)).isoformat()

    def lift(self, plain: Any) -> Any:
        plain = self.unwrapped(plain)
        if type(plain) is not str:
            raise self.unreadable(plain)
        try:
            if zoned := _ZONED.fullmatch(plain):
                return self._in_zone(*zoned.groups())
            return self._with_offset(plain)
        except (ZoneInfoNotFoundError, OSError):
            raise Misfit("its time zone is unknown on this machine. Install the package tzdata") from None
        except (ValueError, msgspec.ValidationError):
            raise Misfit(f"expected {self.name} as RFC 3339 text") from None

    def _with_offset(self, text: str) -> datetime | time:
        fine = _FINE_OFFSET.fullmatch(text)
        if fine is None:
            return msgspec.convert(text, self.cls)
        # Not with `fromisoformat`, which takes an offset below a second for UTC.
        local, sign, hours, minutes, seconds, microseconds = fine.groups("0")
        offset = timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds), microseconds=int(microseconds))
        return msgspec.convert(local, self.cls).replace(tzinfo=timezone(-offset if sign == "-" else offset))

    def _in_zone(self, text: str, key: str) -> datetime | time:
        zone = ZoneInfo(key)
        local = self._with_offset(text)
        if not isinstance(local, datetime):
            return local.replace(tzinfo=zone)
        for fold in (0, 1):
            zoned = local.replace(tzinfo=zone, fold=fold)
            if zoned.utcoffset() == local.utcoffset():
                return zoned
        # The zone's rules changed since it was written: the instant is what was meant.
        return local.astimezone(zone)


def _is_simple(zone: Any) -> bool:
    return zone is None or zone is UTC or (type(zone) is timezone and not zone.utcoffset(None) % _MINUTE)
