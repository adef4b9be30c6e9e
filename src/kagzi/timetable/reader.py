"""Reads a phrase clause by clause, in whatever order they come, into its parts.

"And" joins things of one kind: "monday at 9 and friday at 5" is two timetables and is refused rather than mixed into
one. A lenient reader passes over what it does not understand; it serves to suggest something, never to decide.
"""

from kagzi.timetable import cadence, clocks, days
from kagzi.timetable.cursor import Cursor
from kagzi.timetable.lexicon import Kind, Token
from kagzi.timetable.phrase import Misfit, Phrase

_CLAUSES = (
    *(cadence.rate, cadence.every, days.ordinals, days.weekdays, days.excluded, days.date, days.month),
    *(clocks.window, clocks.minutes, clocks.times, cadence.duration),
)


def read(tokens: list[Token], *, lenient: bool = False) -> Phrase:
    """The parts of the phrase; Misfit names what is not understood."""
    cursor = Cursor(tokens, lenient=lenient)
    while cursor.at < len(tokens):
        start = cursor.at
        try:
            _clause(cursor)
        except Misfit:
            if not lenient:
                raise
            cursor.at = max(cursor.at, start + 1)
    return cursor.phrase


def _clause(cursor: Cursor) -> None:
    start = cursor.at
    if not cursor.skip(Kind.FILLER, Kind.COMMA) and not any(clause(cursor) for clause in _CLAUSES):
        raise Misfit(f"{cursor.tokens[start].raw!r} is not understood" + (" there" if start else ""))
