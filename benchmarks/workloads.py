"""The workloads by name. Those that share their work are one measurement: who asks for one gets its figures alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.automations import w11
from benchmarks.growth import pair, w10_w12
from benchmarks.histories import LEASE_SECS, w5, w6
from benchmarks.idleness import w7
from benchmarks.lab import laboratory
from benchmarks.residents import residents
from benchmarks.runs import Results, w1, w2, w3_w4
from benchmarks.timers import w8, w9


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is measured, where, and whether repetitions share the place because it is dear to make."""

    names: tuple[str, ...]
    measure: Callable[[Any], Awaitable[Results]]
    place: Callable[[], AbstractAsyncContextManager[Any]] = laboratory
    shared: bool = False


MEASUREMENTS = (
    Measurement(("w1",), w1),
    Measurement(("w2",), w2),
    Measurement(("w3", "w4"), w3_w4),
    Measurement(("w5",), w5, partial(laboratory, KAGZI_WORKER_VISIBILITY_TIMEOUT_SECS=str(LEASE_SECS))),
    Measurement(("w6",), w6),
    Measurement(("w7",), w7),
    Measurement(("w8",), w8),
    Measurement(("w9",), w9),
    Measurement(("w10", "w12"), w10_w12, pair, shared=True),
    Measurement(("w11",), w11),
    Measurement(("residents",), residents),
)
NAMES = (*(f"w{number}" for number in range(1, 13)), "residents")
