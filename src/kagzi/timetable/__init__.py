"""When things are due: cron, anchored intervals and human language, in any time zone.

A timetable answers one question, for schedules, for the producers of automations and for whoever checks them before
they run: when is the next one? It is pure computation. It reads no clock, keeps no state and imports nothing of
ours, so the server and a command line without one give the same answer.

    >>> from datetime import UTC, datetime, timedelta
    >>> friday = read_text("every friday at 5pm", "Europe/Berlin")
    >>> friday.cron
    '0 17 * * 5'
    >>> friday.words
    'every Friday at 17:00 (Europe/Berlin)'
    >>> friday.after(datetime(2026, 3, 28, tzinfo=UTC)).isoformat()
    '2026-04-03T15:00:00+00:00'

**Cron** has 5 fields, or 6 with seconds in front: numbers, names (`MON`, `jan`), lists, ranges, steps, `?`, `L` (the
last day of the month; `5L` or `FRIL` the last Friday), `#` (`MON#1`, the first Monday). When day of month and day of
week are both restricted either is enough, as in every cron. `@hourly`, `@daily`, `@midnight`, `@weekly`, `@monthly`,
`@yearly` and `@annually` stand for expressions. What can never happen is refused, and so is a step that is longer than
its field.

    >>> read_cron("0 0 30 2 *")
    Traceback (most recent call last):
        ...
    kagzi.timetable.errors.TimetableError: '0 0 30 2 *' never happens: Feb never has a day 30

**Where clocks change**, a fixed hour and minute fires once: at the next valid instant when it is left out in spring, at
its first occurrence when it comes twice in autumn. A wildcard or a step in hour or minute follows elapsed time: it
fires whenever the clock shows a matching time, twice if it shows it twice.

**An interval** is at least a second long. Its fires are a whole number of intervals away from its anchor, before it as
well as after it, so they never drift; a start is somebody else's business.

    >>> quarters = read_interval(timedelta(minutes=15), anchor=datetime(2026, 1, 1, 0, 5, tzinfo=UTC))
    >>> quarters.after(datetime(2026, 1, 1, 12, tzinfo=UTC)).isoformat()
    '2026-01-01T12:05:00+00:00'

**Human language** becomes one or the other. A number of seconds, minutes, hours, days or weeks and nothing else is an
interval ("every 90 minutes"); "every hour" and everything with days, times or a window is cron. What cron cannot say is
never bent into something near: it is refused, and the error suggests the nearest phrase that works.

    >>> read_text("every 7 minutes on weekdays")
    Traceback (most recent call last):
        ...
    kagzi.timetable.errors.TimetableError: 'every 7 minutes on weekdays' is no timetable: 7 minutes do not divide an \
hour evenly; try 'every 6 minutes of every hour on weekdays'

**Words** are for showing and for reading back: `read_text(timetable.words)` has the same fires. An expression that has
no short saying is shown as itself.

**What was missed** while nobody looked is found from its end, so a gap of years costs no more than one of seconds.

    >>> nightly = read_cron("0 2 * * *")
    >>> missed = nightly.missed(after=datetime(2020, 1, 1, tzinfo=UTC), until=datetime(2026, 1, 1, tzinfo=UTC), limit=2)
    >>> [fire.isoformat() for fire in missed]
    ['2025-12-30T02:00:00+00:00', '2025-12-31T02:00:00+00:00']

A text becomes a timetable in four steps: `lexicon` cuts it into words, `reader` finds the parts of the phrase by the
clauses in `cadence`, `days` and `clocks`, `meaning` makes an expression or a length of them, `text` suggests something
where that fails. An expression becomes a `pattern` on the wall clock, `zone` knows when wall clocks change, and
`timetable` searches the one by the other.
"""

from kagzi.timetable.errors import TimetableError
from kagzi.timetable.text import named_zone, read_text
from kagzi.timetable.timetable import Timetable, read_cron, read_interval

__all__ = ["Timetable", "TimetableError", "named_zone", "read_cron", "read_interval", "read_text"]
