"""Reads timetables written by people, and suggests the nearest one where somebody wrote none.

A phrase may name its zone at its end, "(Europe/Berlin)", which goes before the one that is given. The words of a
timetable are such phrases, and so is an expression, with or without the word "cron" in front. A suggestion always
works: it has been read before it is made.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches

from kagzi.timetable import lexicon, meaning, pattern, reader, words, zone
from kagzi.timetable.errors import TimetableError, shown
from kagzi.timetable.fields import LAST
from kagzi.timetable.lexicon import Kind, Token
from kagzi.timetable.phrase import Misfit, Phrase
from kagzi.timetable.timetable import EPOCH, Timetable, read_cron, read_interval

_NAMED_ZONE = re.compile(r"^(?P<rest>.*?)[\s,]*\((?P<zone>[^()]*)\)\s*$")
_PLAIN_ZONE = re.compile(r"^(?P<rest>.*?)[\s,]*\b(?:in\s+)?(?P<zone>UTC|[A-Z]\w+/[A-Z][\w/+-]+)(?:\s+time)?\s*$")
_ANCHOR = re.compile(
    r"^(?P<rest>.*?)[\s,]*\bcounted from (?P<day>\d{4}-\d{2}-\d{2})"
    r"(?:[ T](?P<time>\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?))?(?: ?UTC| ?Z)?\s*$",
    re.IGNORECASE,
)
_CRON = re.compile(r"cron\s+(.+)|(@\w+)|([\d*][\d*,/-]*(?:\s+[\d*][\d*,/-]*)(?:\s+\S+){3,4})", re.IGNORECASE)
_MONTHS = re.compile(r"\d\s*M\b")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:T(?=\d))?")
# Looking for the nearest phrase takes its time, and nobody says more. Words with an expression are longer.
_LONGEST = 200
_LONGEST_CRON = 1200
_DEFAULT = "every day at 09:00"
# What people say and no timetable knows, with what they may have meant.
_GUESSES = (
    (re.compile(r"\b(?:biweekly|bi-weekly)\b"), "every 2 weeks"),
    (re.compile(r"\b(?:bimonthly|bi-monthly)\b"), "every 2 months"),
    (re.compile(r"\b(?:a )?couple of\b"), "2"),
    (re.compile(r"\b(?:a few|few|several)\b"), "3"),
    (re.compile(r"\bfirst (?:weekday|workday|(?:business|working) day)\b"), "first monday"),
    (re.compile(r"\blast (?:weekday|workday|(?:business|working) day)\b"), "last friday"),
    (re.compile(r"\b(?:start|beginning) of (?:the |each |every )?month\b"), "first day of the month"),
    (re.compile(r"\bend of (?:the |each |every )?month\b"), "last day of the month"),
    (re.compile(r"\b\d+ ?(?:ms|milliseconds?|msecs?)\b"), "1 second"),
    (re.compile(r"\b(1[3-9]|2[0-3])(:\d{2}) ?pm\b"), r"\1\2"),
    (re.compile(r"\b(1[3-9]|2[0-3]) ?pm\b"), r"\1:00"),
    (re.compile(r"\b24:00\b"), "0:00"),
    (_DATE, ""),
    (re.compile(r"\bat (\d{1,2})\.(\d{2})\b"), r"at \1:\2"),
    (re.compile(r"\b(?:all the time|constantly|continuously|always)\b"), "every minute"),
)
# Parts of a day are no times. What they may mean where none is said, and the first hour that is after noon in them.
_PART = re.compile(
    r"(?:\b(?P<every>every|each)\s+(?:single\s+)?)?(?:\b(?:in|at|during)\s+(?:the\s+)?)?"
    r"\b(?P<part>morning|afternoon|evening|night)s?\b"
    r"|\b(?P<nightly>nightly)\b"
)
_MEANT = {"morning": ("9:00", 12), "afternoon": ("15:00", 1), "evening": ("18:00", 1), "night": ("0:00", 6)}
_SAID = re.compile(r"\bat \d|\d ?[ap]\.?m\b|\d:\d\d|\bnoon\b|\bmidnight\b")
_BARE = re.compile(r"\bat (\d{1,2})(:\d{2})?(?! ?[ap]\.?m\b|[\d:.])")


def read_text(text: str, timezone: str = "UTC", anchor: datetime | None = None) -> Timetable:
    """The timetable that a phrase means: a cron expression, or for a pure length of time an interval.

    An interval counts from `anchor`, from the epoch where there is none. TimetableError suggests what works.
    """
    zone.read(timezone)
    said, named, counted = _apart(text)
    if named is not None:
        zone.read(named)
    try:
        timetable = _timetable(_find(said), named or timezone, counted or anchor or EPOCH)
    except Misfit as misfit:
        suggestion = _nearest(said, misfit) + (f" ({named})" if named else "")
        raise TimetableError("text", f"{shown(said)} is no timetable: {misfit.reason}", suggestion) from None
    if counted is not None and timetable.cron is not None:
        raise TimetableError("text", f"{shown(said)} follows the calendar and counts from nowhere", timetable.words)
    return timetable


def named_zone(text: str) -> str | None:
    """The zone that a phrase names itself, whether or not there is one of that name."""
    return _apart(text)[1]


def _apart(text: str) -> tuple[str, str | None, datetime | None]:
    """What is said, the zone it names, and the moment it counts from."""
    said = " ".join(text[: 2 * _LONGEST_CRON].split())
    if len(said) > _LONGEST_CRON:
        raise TimetableError("text", f"{shown(said)} is too long", _DEFAULT)
    counted, named = None, None
    if found := _ANCHOR.match(said):
        said, counted = found["rest"], _anchor(found)
    # A field such as MON/2 at the end of an expression only looks like a zone.
    if (found := _NAMED_ZONE.match(said)) or (not _CRON.fullmatch(said) and (found := _PLAIN_ZONE.match(said))):
        said, named = found["rest"], found["zone"]
    return said, named, counted


def _find(text: str) -> str | timedelta:
    if found := _CRON.fullmatch(text):
        try:
            return pattern.read(found[1] or found[2] or found[3]).text
        except TimetableError as error:
            raise TimetableError("text", error.reason) from None
    if len(text) > _LONGEST:
        raise TimetableError("text", f"{shown(text)} is too long", _DEFAULT)
    if _MONTHS.search(text):
        raise Misfit("M may be months or minutes, which are written out")
    if _DATE.search(text):
        raise Misfit("it names one day, and a timetable goes on")
    return meaning.find(reader.read(lexicon.cut(text.lower())))


def _timetable(found: str | timedelta, timezone: str, anchor: datetime) -> Timetable:
    try:
        return read_cron(found, timezone) if isinstance(found, str) else read_interval(found, anchor)
    except TimetableError as error:
        raise Misfit(error.reason) from None


def _anchor(found: re.Match[str]) -> datetime:
    try:
        return datetime.fromisoformat(f"{found['day']}T{found['time'] or '00:00'}").replace(tzinfo=UTC)
    except ValueError as error:
        raise TimetableError("text", f"{found['day']} {found['time'] or ''} is no moment: {error}") from None


def _nearest(text: str, misfit: Misfit) -> str:
    """The first of the alternatives that works, in words."""
    for alternative in _alternatives(text.lower(), misfit):
        try:
            found = meaning.find(alternative)
            if isinstance(found, str):
                return words.cron(pattern.read(found))
            read_interval(found, EPOCH)
            return words.interval(found, None)
        except (Misfit, TimetableError):
            continue
    return _DEFAULT


def _alternatives(text: str, misfit: Misfit) -> Iterator[Phrase]:
    yield from _instead(misfit)
    text = _without_parts(text)
    for guess, meant in _GUESSES:
        text = guess.sub(meant, text)
    tokens = [_corrected(token) for token in lexicon.cut(text)]
    for lenient in (False, True):
        try:
            phrase = reader.read(tokens, lenient=lenient)
        except Misfit as other:
            yield from _instead(other)
            continue
        yield from _with_instead(phrase)
        if phrase.dates is not None:
            yield replace(phrase, dates=frozenset({LAST}))


def _without_parts(text: str) -> str:
    """Days and times in place of a part of the day. A time that is said is the one that counts, in that part."""
    found = _PART.search(text)
    if found is None:
        return text
    usual, afternoon = _MEANT[found["part"] or "night"]
    said = _SAID.search(text) is not None
    day = "every day" if found["every"] or found["nightly"] else ""
    rest = _PART.sub(day if said else f"{day} at {usual}", text, count=1)
    return _BARE.sub(lambda bare: f"at {_hour(int(bare[1]), afternoon)}{bare[2] or ':00'}", rest) if said else rest


def _hour(hour: int, afternoon: int) -> int:
    return hour + 12 if afternoon <= hour < 12 else hour


def _with_instead(phrase: Phrase) -> Iterator[Phrase]:
    yield phrase
    try:
        meaning.find(phrase)
    except Misfit as misfit:
        yield from _instead(misfit)


def _instead(misfit: Misfit, depth: int = 3) -> Iterator[Phrase]:
    """What a Misfit offers, and what that offers if it is one itself."""
    if misfit.instead is None or not depth:
        return
    phrase = misfit.instead
    if isinstance(phrase, str):
        phrase = reader.read(lexicon.cut(phrase))
    yield phrase
    try:
        meaning.find(phrase)
    except Misfit as other:
        yield from _instead(other, depth - 1)


def _corrected(token: Token) -> Token:
    """The word that was perhaps meant by one that is not known."""
    if token.kind is not Kind.UNKNOWN or len(token.raw) < 3:
        return token
    near = get_close_matches(token.raw, [word for word in lexicon.SPELLINGS if len(word) > 2], n=1, cutoff=0.7)
    return Token(*lexicon.SPELLINGS[near[0]], near[0]) if near else token
