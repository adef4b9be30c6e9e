"""What a consumer's `prepare` decides. It is checked field by field before anything of it is stored, and an error names
the handler and the field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kagzi.automations.events import LONGEST_TITLE, checked_text
from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1.common_pb2 import Payload
from kagzi.sdk.errors import ConfigError

MOST_RESERVED = 1_000
_UI_BYTES = 64 * 1024
_FIRST = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime(2200, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a consumer wants to do. Empty: nothing for now.

    `reserve`: ids of pending events by topic. `data`: whatever `mutate` and `next` need. `title` and `ui`: for people.
    `wake_at`: when to look again even if nothing is published; an aware datetime or ISO 8601 text.
    """

    reserve: Mapping[str, Sequence[str]] = field(default_factory=dict)
    data: Any = None
    title: str = ""
    ui: Mapping[str, Any] | None = None
    wake_at: datetime | str | None = None

    @property
    def reserved(self) -> bool:
        """Whether it wants any event."""
        return any(self.reserve.values())


def checked(given: Any, handler: str, subscribes: Iterable[str]) -> Prepared:
    """The same with every field as it should be. ConfigError names the handler and the first field that is not."""
    if not isinstance(given, Prepared):
        raise ConfigError(f"`prepare` of {handler!r} must return Prepared(...), and not {_kind(given)}.")
    return Prepared(
        reserve=_reserve(given.reserve, handler, tuple(subscribes)),
        data=given.data,
        title=checked_text(given.title, "`title`", handler, longest=LONGEST_TITLE, empty=True),
        ui=_ui(given.ui, handler),
        wake_at=moment(given.wake_at, handler),
    )


def to_wire(prepared: Prepared, data: Payload | None) -> pb.PreparedWork:
    """Checked work, with its encoded data, as it travels."""
    work = pb.PreparedWork(
        reserve=[pb.EventSelection(topic=topic, event_ids=ids) for topic, ids in prepared.reserve.items()],
        data=data,
        title=prepared.title,
        ui_json="" if prepared.ui is None else json.dumps(prepared.ui),
    )
    if isinstance(prepared.wake_at, datetime):
        work.wake_at.FromDatetime(prepared.wake_at)
    return work


def from_wire(work: pb.PreparedWork, data: Any) -> Prepared:
    """Stored work, with its decoded data."""
    return Prepared(
        reserve={selection.topic: list(selection.event_ids) for selection in work.reserve},
        data=data,
        title=work.title,
        ui=json.loads(work.ui_json) if work.ui_json else None,
        wake_at=work.wake_at.ToDatetime(UTC) if work.HasField("wake_at") else None,
    )


def moment(given: Any, handler: str) -> datetime | None:
    """When a consumer wants to be woken. ConfigError that names it when that is no time."""
    if given is None:
        return None
    found = given
    if isinstance(given, str):
        try:
            found = datetime.fromisoformat(given)
        except ValueError:
            raise _no_time(given, handler, "it is no time in ISO 8601") from None
    if not isinstance(found, datetime):
        raise _no_time(given, handler, f"it is {_kind(given)}")
    if found.utcoffset() is None:
        raise _no_time(given, handler, "it has no time zone")
    if not _FIRST <= found < _LAST:
        raise _no_time(given, handler, "it is not between the years 1970 and 2199")
    return found.astimezone(UTC)


def _no_time(given: Any, handler: str, why: str) -> ConfigError:
    return ConfigError(
        f"`wake_at` of {handler!r} is {given!r:.80}: {why}. It takes an aware datetime, as "
        "datetime.now(UTC) + timedelta(hours=1), or ISO 8601 text with an offset, as '2030-01-31T09:00:00+00:00'."
    )


def _reserve(given: Any, handler: str, subscribes: tuple[str, ...]) -> dict[str, list[str]]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"`reserve` of {handler!r} must map topics to lists of event ids, and not be {_kind(given)}.")
    found: dict[str, list[str]] = {}
    for topic, ids in given.items():
        if topic not in subscribes:
            raise ConfigError(
                f"`reserve` of {handler!r} names the topic {topic!r}, to which it does not subscribe: it has "
                f"{', '.join(map(repr, subscribes))}."
            )
        if isinstance(ids, str) or not isinstance(ids, Iterable):
            raise ConfigError(f"`reserve` of {handler!r} must list ids for {topic!r}, and not be {_kind(ids)}.")
        listed = [checked_text(one, f"an id in `reserve[{topic!r}]`", handler) for one in ids]
        if listed:
            found[topic] = list(dict.fromkeys(listed))
    count = sum(map(len, found.values()))
    if count > MOST_RESERVED:
        raise ConfigError(f"`reserve` of {handler!r} names {count} events: one run takes at most {MOST_RESERVED}.")
    return found


def _ui(given: Any, handler: str) -> Mapping[str, Any] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ConfigError(f"`ui` of {handler!r} must be a dict of JSON values, and not {_kind(given)}.")
    try:
        text = json.dumps(dict(given), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"`ui` of {handler!r} must be a dict of JSON values: {error}.") from None
    if len(text) > _UI_BYTES or "\\u0000" in text:
        raise ConfigError(f"`ui` of {handler!r} must be at most {_UI_BYTES} bytes of JSON without NUL.")
    return dict(given)


def _kind(given: Any) -> str:
    if isinstance(given, type):
        return f"the class {given.__name__}"
    return "None" if given is None else f"a value of type {type(given).__name__}"
