"""The guards in SQL: the conditions on status, token, attempt and due time under which a statement that writes or locks
may touch a row, and what it does about one that is there already; each found by its place in the text, so that it can
be taken out. A namespace and the keys that join rows are no guards: the first is held by a rule of the house, without
the others a statement means nothing. Reads are left out; they change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_WORD = re.compile(r"'(?:[^']|'')*'|\w+|[()]")
_WRITES = re.compile(r"\b(insert into|update kagzi|delete from|for no key update|for update)\b")
_CLAUSES = {"select", "from", "where", "on", "having", "set", "returning", "group", "order", "limit", "for", "values"}
_NAME = r"\b\w+\."
_TOKENS = "claim_token|token|attempt_id|received_by"
_GUARDS = re.compile(
    rf"{_NAME}status (?:=|<>) '\w+'"
    rf"|{_NAME}status (?:not )?in \([^)]*\)"
    rf"|{_NAME}(?:{_TOKENS}) = [\w.]+"
    rf"|{_NAME}(?:received_by|parked_hash|resolution|blocked_code|revoked_at) is null"
    rf"|{_NAME}(?:available_at|deadline_at) <= kagzi\.now\(\)(?! [-+])"
)
_CONFLICT = re.compile(r"on conflict(?: \([^)]*\))? do nothing")


# Whose absence changes nothing that anybody could see, and why they stand there.
HARMLESS = {
    "claims.sql:claim#1": "it says which types have runs at all; the probes behind it look at each run",
    "upkeep.sql:remove#1": "for the index of ended runs; a run that has not ended has no time of its end",
    "instances.sql:release#2": "the same of the same rows, whose locks the caller holds",
    "preparations.sql:prepare#1": "what is not pending was left out before; the caller holds the automation",
    "instances.sql:lock#2": "what ended in between would be locked for nothing; the statement answers who was live",
}


@dataclass(frozen=True, slots=True)
class Guard:
    """One condition of a statement, and the statement without it."""

    source: str
    name: str
    number: int
    words: str
    without: str

    @property
    def key(self) -> str:
        return f"{self.source}:{self.name}#{self.number}"

    @property
    def title(self) -> str:
        return f"{self.key} {self.words}"


def guards(source: str, name: str, text: str) -> Iterator[Guard]:
    """What guards this statement, in the order of the text."""
    if not _WRITES.search(text):
        return
    clauses = _clauses(text)
    for number, (start, end, instead) in enumerate(sorted(_places(text, clauses)), 1):
        words = " ".join(text[start:end].split())
        guard = Guard(source, name, number, words, text[:start] + instead + text[end:])
        if guard.key not in HARMLESS:
            yield guard


def _places(text: str, clauses: dict[int, str]) -> Iterator[tuple[int, int, str]]:
    for found in _GUARDS.finditer(text):
        conditional = clauses.get(found.start()) in ("where", "on", "having")
        # The fence answers whether a token is the current one: that comparison is no condition of its statement.
        fences = "claim_token =" in found[0] or found[0].endswith("status = 'RUNNING'")
        if conditional or (fences and clauses.get(found.start()) == "select"):
            yield found.start(), found.end(), "true"
    for found in _CONFLICT.finditer(text):
        yield found.start(), found.end(), ""


def _clauses(text: str) -> dict[int, str]:
    """For each word, by its place, the clause that it stands in; parentheses are part of the clause around them."""
    stack, places = [""], {}
    for found in _WORD.finditer(text):
        word = found[0].lower()
        if word == "(":
            stack.append(stack[-1])
        elif word == ")":
            stack.pop()
        elif word in _CLAUSES:
            stack[-1] = word
        places[found.start()] = stack[-1]
    return places
