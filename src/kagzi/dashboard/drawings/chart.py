"""Charts of values over time. Places are percentages, so that a drawing fits any width without stretching its text.
A chart without values is flat, never an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

# Above the highest value, so that a line at the top is seen.
_ROOM = 1.06


@dataclass(frozen=True, slots=True)
class Series:
    """One thing over time; None where nothing was measured."""

    tone: str
    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle, in percent."""

    tone: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Line:
    """A path over as many units as there are points, and 100 down."""

    tone: str
    path: str


@dataclass(frozen=True, slots=True)
class Touch:
    """A column that says what it shows when it is pointed at."""

    x: float
    width: float
    said: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing, its scale and its words."""

    said: str
    points: int
    legend: Sequence[tuple[str, str]]
    scale: Sequence[tuple[float, str]]
    axis: Sequence[str]
    touches: Sequence[Touch]
    bars: Sequence[Bar] = field(default_factory=list)
    lines: Sequence[Line] = field(default_factory=list)


def bars(title: str, times: Sequence[str], series: Sequence[Series], write: Callable[[float], str]) -> Chart:
    """What happened in each stretch, one kind upon the other."""
    totals = [sum(each.values[at] or 0 for each in series) for at in range(len(times))]
    top = nice(max(totals, default=0))
    wide = 100 / max(len(times), 1)
    made = []
    for at in range(len(times)):
        below = 0.0
        for each in series:
            value = each.values[at] or 0
            if value:
                high = 100 * value / (top * _ROOM)
                below += high
                made.append(
                    Bar(
                        each.tone,
                        _round(at * wide + wide * 0.08),
                        _round(100 - below),
                        _round(wide * 0.84),
                        _round(high),
                    )
                )
    sums = ", ".join(f"{sum(v or 0 for v in each.values):,.0f} {each.name}" for each in series)
    return _chart(f"{title}: {sums}", times, series, top, write, bars=made)


def lines(title: str, times: Sequence[str], series: Sequence[Series], write: Callable[[float], str]) -> Chart:
    """How much of something there was at each time."""
    highest = max((value for each in series for value in each.values if value is not None), default=0)
    top = nice(highest)
    made = [Line(each.tone, _path(each.values, top)) for each in series if any(v is not None for v in each.values)]
    said = ", ".join(f"{each.name} {write(last)}" for each in series if (last := _last(each.values)) is not None)
    return _chart(f"{title}, last: {said or 'nothing measured'}", times, series, top, write, lines=made)


def nice(value: float) -> float:
    """The next round number: 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def _chart(
    said: str,
    times: Sequence[str],
    series: Sequence[Series],
    top: float,
    write: Callable[[float], str],
    bars: Sequence[Bar] = (),
    lines: Sequence[Line] = (),
) -> Chart:
    wide = 100 / max(len(times), 1)
    touches = []
    for at, time in enumerate(times):
        facts = [f"{each.name} {write(value)}" for each in series if (value := each.values[at]) is not None]
        touches.append(Touch(_round(at * wide), _round(wide), " · ".join([time, *facts])))
    return Chart(
        said=said,
        points=len(times),
        legend=[(each.tone, each.name) for each in series],
        scale=[(_round(100 - 100 * part / _ROOM), write(top * part)) for part in (1.0, 0.5)],
        axis=[times[0], times[len(times) // 2], times[-1]] if times else [],
        touches=touches,
        bars=bars,
        lines=lines,
    )


def _path(values: Sequence[float | None], top: float) -> str:
    """A line through what was measured; it ends where nothing was."""
    parts: list[str] = []
    drawn = False
    for at, value in enumerate(values):
        if value is None:
            drawn = False
            continue
        y = _round(100 - 100 * value / (top * _ROOM))
        # A point alone is a short line, or nobody would see it.
        parts.append(f"L{at + 0.5} {y}" if drawn else f"M{at + 0.3} {y}L{at + 0.5} {y}")
        drawn = True
    return "".join(parts)


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def _round(value: float) -> float:
    return round(value, 2)
