"""A place among the tokens of a phrase, and the parts said up to there.

It steps, looks ahead and gathers series ("9, 12 and 17"); what clauses there are is the business of its users. A part
is said once: a second time is a Misfit, because a timetable has one answer to each question.
"""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any, TypeVar

from kagzi.timetable.lexicon import Kind, Token
from kagzi.timetable.phrase import Misfit, Phrase

T = TypeVar("T")

_NOTHING = Token(Kind.UNKNOWN, None, "")


class Cursor:
    """The place, from the first token to behind the last one; `lenient` when what is read is only to be suggested."""

    def __init__(self, tokens: list[Token], *, lenient: bool = False) -> None:
        self.tokens = tokens
        self.lenient = lenient
        self.at = 0
        self.phrase = Phrase()

    def token(self, ahead: int = 0) -> Token:
        """The token so many places ahead; behind the last one are tokens of no kind that matters."""
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else _NOTHING

    def kind(self, ahead: int = 0) -> Kind:
        return self.token(ahead).kind

    def take(self) -> Token:
        taken = self.token()
        self.at += 1
        return taken

    def skip(self, *kinds: Kind) -> bool:
        """Pass over the tokens of these kinds; whether there were any."""
        start = self.at
        while self.kind() in kinds:
            self.at += 1
        return self.at > start

    def past(self, ahead: int, *kinds: Kind) -> int:
        """How far ahead the first token is that has none of these kinds."""
        while self.kind(ahead) in kinds:
            ahead += 1
        return ahead

    def series(self, item: Callable[[], T | None]) -> list[T]:
        """Items joined by commas and "and"; a joint that leads to none of them is left where it is."""
        found: list[T] = []
        while True:
            start = self.at
            if found and not self.skip(Kind.AND, Kind.COMMA):
                return found
            if found:
                self.skip(Kind.FILLER)
            following = item()
            if following is None:
                self.at = start
                return found
            found.append(following)

    def whole(self) -> int | None:
        """A whole number, said in digits, as a word or as an ordinal."""
        said = self.token()
        if said.kind is Kind.ORDINAL and isinstance(said.value, int):
            self.at += 1
            return said.value
        if said.kind is Kind.NUMBER and isinstance(said.value, Decimal) and said.value == int(said.value):
            self.at += 1
            return int(said.value)
        return None

    def number(self) -> Decimal:
        taken = self.take()
        assert isinstance(taken.value, Decimal), "asked only where a number stands"
        return taken.value

    def ordinal(self) -> int | None:
        """The place that an ordinal names. "second" is one where something that can be counted follows."""
        said = self.token()
        if said.kind is Kind.ORDINAL and isinstance(said.value, int):
            self.at += 1
            return said.value
        joined = self.kind(1) in (Kind.AND, Kind.COMMA) and self.past(1, Kind.AND, Kind.COMMA, Kind.FILLER)
        counted = (
            self.kind(1) in (Kind.WEEKDAY, Kind.UNIT)
            or (joined and self.kind(joined) is Kind.ORDINAL)
            or (self.token(1).raw == "of" and self.kind(2) is Kind.MONTH)
        )
        if said.raw == "second" and counted:
            self.at += 1
            return 2
        return None

    def is_ordinal(self) -> bool:
        start = self.at
        found = self.ordinal() is not None
        self.at = start
        return found

    def say(self, part: str, value: Any) -> bool:
        """Note one part of the phrase. True, so that a clause can end with it."""
        if getattr(self.phrase, part) is not None:
            raise Misfit("it says two things of one kind, which are two timetables")
        self.phrase = replace(self.phrase, **{part: value})
        return True
