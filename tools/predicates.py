"""The guards in SQL: the conditions under which a statement that writes or locks may touch a row, each found by its
place in the text so that it can be taken out. A namespace and the keys that join rows are no guards: the first is held
by a rule of the house, without the others a statement means nothing. Reads are left out; they change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_WORD = re.compile(r"'(?:[^']|'')*'|\w+|[()]")
_WRITES = re.compile(r"\b(insert into|update kagzi|delete from|for no key update|for update)\b")
_CLAUSES = {"select", "from", "where", "on", "having", "set", "returning", "group", "order", "limit", "for", "values"}
_NAME = r"\b(?:\w+\.)?"
_FLAGS = "is_latest|set_aside|dedupe_forever|enabled|awaited|detached|effect|dirty|queued|kept|suspect"
_TOKENS = "claim_token|last_token|token|attempt_id|received_by|resolution_id"
_MOMENT = r"kagzi\.now\(\)(?: - \$\d+::\w+(?: \* interval '[^']+')?)?"
_GUARDS = re.compile(
    rf"{_NAME}status (?:=|<>) (?:'\w+'|\w+\.\w+)"
    rf"|{_NAME}status (?:not )?in \([^)]*\)"
    rf"|{_NAME}(?:{_TOKENS}) (?:=|<>) \$?[\w.]+(?:::\w+)?"
    rf"|{_NAME}(?:available_at|deadline_at|not_before|last_heartbeat_at) (?:<=|<|>|>=|=) (?:{_MOMENT}|'infinity')"
    rf"|(?<!:){_NAME}\w+ is (?:not )?null"
    rf"|{_NAME}(?:crashes|state_number|history_excess|writes|unclear) (?:=|<>|<=|<|>|>=) [\w.]+"
    rf"|\bnot {_NAME}(?:{_FLAGS})\b|\b\w+\.(?:{_FLAGS})\b(?! =)",
)
_CONFLICT = re.compile(r"on conflict(?: \([^)]*\))? do nothing")


@dataclass(frozen=True, slots=True)
class Guard:
    """One condition of a statement, and the statement without it."""

    source: str
    name: str
    number: int
    words: str
    without: str

    @property
    def title(self) -> str:
        return f"{self.source}:{self.name}#{self.number} {self.words}"


def guards(source: str, name: str, text: str) -> Iterator[Guard]:
    """What guards this statement, in the order of the text."""
    if not _WRITES.search(text):
        return
    clauses = _clauses(text)
    for number, (start, end, instead) in enumerate(sorted(_places(text, clauses)), 1):
        words = " ".join(text[start:end].split())
        yield Guard(source, name, number, words, text[:start] + instead + text[end:])


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
