"""Definitions of automations, checked: what a worker declares, by the rules that a server can judge. An error names the
handler and the rule; what is allowed and probably not meant is a warning. Schedules are read here, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1.schedule_pb2 import ScheduleTiming
from kagzi.server.api import checks
from kagzi.store.deployments import Definition, Handler
from kagzi.store.errors import invalid
from kagzi.timetable import Timetable, TimetableError, read_cron, read_interval, read_text

# Together with a handler's name it is the type of a run.
_NAME_BYTES = 127
_HANDLERS = 1_000
_TOPICS = 100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def definition(given: pb.AutomationDefinition, timezone: str, default_queue: str) -> Definition:
    """The definition to be put in force. `timezone` is where producers live that say nothing."""
    name = checks.name(given.name, "definition.name", maximum=_NAME_BYTES)
    found = checks.name(given.definition_hash, "definition.definition_hash")
    task_queue = checks.name(given.task_queue, "definition.task_queue", default=default_queue)
    if not given.handlers:
        raise invalid("definition.handlers", f"automation {name!r} has no handler: declare a producer or a consumer")
    if len(given.handlers) > _HANDLERS:
        raise checks.exceeded(
            "definition.handlers", f"{len(given.handlers)} handlers, and at most {_HANDLERS} are kept"
        )
    _topics(given.accepts, "definition.accepts")
    handlers = [_handler(one, timezone) for one in given.handlers]
    names = [handler.name for handler in handlers]
    for twice in sorted({one for one in names if names.count(one) > 1}):
        raise invalid("definition.handlers", f"two handlers of automation {name!r} are named {twice!r}", twice)
    return Definition(name, found, task_queue, handlers)


def warnings(declared: Definition, accepts: Iterable[str] = ()) -> list[str]:
    """What is allowed and probably not meant. Others publish to the topics that it `accepts`."""
    published = {topic for handler in declared.handlers for topic in handler.publishes}
    subscribed = {topic for handler in declared.handlers for topic in handler.subscribes}
    return [
        *(f"nobody subscribes to the topic {topic!r}" for topic in sorted(published - subscribed)),
        *(f"no handler publishes to the topic {topic!r}" for topic in sorted(subscribed - published - set(accepts))),
    ]


def words(given: pb.HandlerDefinition) -> str:
    """A producer's schedule as people say it; empty for a consumer."""
    try:
        return _timetable(given.timing, given.timezone or "UTC").words if given.HasField("timing") else ""
    except TimetableError:
        return ""


def _handler(given: pb.HandlerDefinition, timezone: str) -> Handler:
    field = "definition.handlers"
    name = checks.name(given.name, f"{field}.name", maximum=_NAME_BYTES)
    checks.enum(given.kind, pb.HandlerKind, f"{field}.kind", required=True)
    publishes = _topics(given.publishes, f"{field}.publishes")
    subscribes = _topics(given.subscribes, f"{field}.subscribes")
    if given.kind == pb.HANDLER_CONSUMER:
        if not subscribes:
            raise invalid(f"{field}.subscribes", f"consumer {name!r} subscribes to no topic", name)
        if given.HasField("timing"):
            raise invalid(f"{field}.timing", f"consumer {name!r} has a schedule: only producers have one", name)
        return Handler(name, "CONSUMER", publishes, subscribes, given.mutates)
    if not publishes:
        raise invalid(f"{field}.publishes", f"producer {name!r} publishes to no topic", name)
    if subscribes:
        raise invalid(f"{field}.subscribes", f"producer {name!r} subscribes to topics: only consumers do", name)
    if given.mutates:
        raise invalid(f"{field}.mutates", f"producer {name!r} mutates: only consumers do", name)
    if not given.HasField("timing"):
        raise invalid(f"{field}.timing", f"producer {name!r} has no schedule: give `every` or `cron`", name)
    zone = given.timezone or timezone
    try:
        found = _timetable(given.timing, zone)
    except TimetableError as error:
        where = "timezone" if error.field == "timezone" else f"timing.{given.timing.WhichOneof('timing') or 'timing'}"
        raise invalid(f"{field}.{where}", f"the schedule of producer {name!r}: {error}", name) from None
    if found.every is not None:
        return Handler(name, "PRODUCER", publishes, (), False, "interval", str(found.every // _MILLISECOND), zone)
    return Handler(name, "PRODUCER", publishes, (), False, "cron", found.cron, found.timezone)


def _topics(given: Sequence[str], field: str) -> list[str]:
    if len(given) > _TOPICS:
        raise checks.exceeded(field, f"{field} names {len(given)} topics, and at most {_TOPICS} are kept")
    return sorted({checks.name(topic, field) for topic in given})


def _timetable(timing: ScheduleTiming, timezone: str) -> Timetable:
    """The timetable of a schedule; where its interval is anchored is decided when it is put in force."""
    match timing.WhichOneof("timing"):
        case "cron":
            return read_cron(timing.cron, timezone)
        case "every_ms":
            # The zone is kept beside an interval too, and must exist.
            read_cron("@daily", timezone)
            if timing.every_ms > checks.TEN_YEARS_MS:
                raise TimetableError("interval", f"{timing.every_ms} ms is longer than ten years")
            return read_interval(timedelta(milliseconds=timing.every_ms), _EPOCH)
        case "text":
            return read_text(timing.text, timezone, _EPOCH)
    raise TimetableError("timing", "no timing is given: `cron`, `every_ms` or `text`")
