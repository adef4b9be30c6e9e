"""What a doctor finds: one sentence on what is so, and one on what to do about it. Only what must be dealt with makes
the command fail; what is merely good to know does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class Level(StrEnum):
    """How much a finding matters."""

    # As it should be.
    WELL = "well"
    # Good to know; nothing has to be done.
    NOTE = "note"
    # Could not be looked at.
    UNSEEN = "unseen"
    # Something must be done.
    ACT = "act"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. `subjects` are ids to look at, at most ten."""

    check: str
    level: Level
    message: str
    advice: str = ""
    subjects: tuple[str, ...] = ()


def well(check: str, message: str) -> Finding:
    """All is as it should be."""
    return Finding(check, Level.WELL, message)


def note(check: str, message: str, advice: str = "", subjects: Sequence[str] = ()) -> Finding:
    """Good to know."""
    return Finding(check, Level.NOTE, message, advice, tuple(subjects[:10]))


def unseen(check: str, message: str, advice: str = "") -> Finding:
    """Not looked at, and why."""
    return Finding(check, Level.UNSEEN, message, advice)


def act(check: str, message: str, advice: str, subjects: Sequence[str] = ()) -> Finding:
    """Something must be done."""
    return Finding(check, Level.ACT, message, advice, tuple(subjects[:10]))


def skewed(check: str, apart: timedelta, tolerated: timedelta, whose: str) -> Finding:
    """How far two clocks are from each other, as far as it was measured."""
    seconds = abs(apart.total_seconds())
    if abs(apart) <= tolerated:
        return well(check, f"this machine and {whose} agree within {max(seconds, 0.001):.3f} s")
    way = "ahead of" if apart > timedelta() else "behind"
    return act(
        check,
        f"{whose} is {seconds:,.1f} s {way} this machine",
        "Set both by NTP (chrony or systemd-timesyncd): start times and deadlines are given by one clock and "
        "kept by the other.",
    )


def counted(number: int, one: str, several: str, most: int = 100) -> str:
    """So many of them, as counted up to `most`."""
    return f"1 {one}" if number == 1 else f"{number}{' or more' if number >= most else ''} {several}"
