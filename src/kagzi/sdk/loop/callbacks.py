"""The queue of ready callbacks, what feeds it (`call_soon` and timers), and the report of those that raised.

First in, first out. A callback runs only while the owner pumps, and one pump has a budget. Nothing here knows
what a task is.
"""

import asyncio
import logging
import math
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple, Unpack

from kagzi.sdk.loop.errors import Spinning
from kagzi.sdk.loop.refusals import Refusals
from kagzi.sdk.loop.timer import Clock, Timer

Ts = TypeVarTuple("Ts")
Trouble = dict[str, Any]
Handler = Callable[[asyncio.AbstractEventLoop, Trouble], object]

_log = logging.getLogger(__name__)

# The budget is counted in slices, so that counting costs nothing in the pumps of one or two callbacks.
_SLICE = 1_000
# A run that starts 200,000 branches is wide, not spinning: the budget grows with the longest queue seen.
_CALLBACKS_A_BRANCH = 20


def log_trouble(trouble: Trouble) -> None:
    """What an owner that does not ask to hear of trouble gets."""
    _log.error("%s", trouble.get("message", "error in workflow code"), exc_info=trouble.get("exception"))


class Callbacks(Refusals):
    """The part of the loop interface that schedules."""

    __slots__ = ("_clock", "_dropped", "_handler", "_max_callbacks", "_on_trouble", "_ready")

    def __init__(self, clock: Clock, on_trouble: Callable[[Trouble], None], max_callbacks: int) -> None:
        self._clock = clock
        self._on_trouble = on_trouble
        self._max_callbacks = max_callbacks
        self._handler: Handler | None = None
        self._ready: deque[asyncio.Handle] = deque()
        self._dropped = False

    @property
    def quiescent(self) -> bool:
        """Nothing can move until a future is resolved or a timer fires."""
        return not self._ready

    def _run_all(self) -> None:
        self._run(_SLICE)
        spent = _SLICE
        widest = 0
        while self._ready:
            widest = max(widest, len(self._ready))
            if spent >= self._max_callbacks + _CALLBACKS_A_BRANCH * widest:
                raise Spinning(spent)
            self._run(_SLICE)
            spent += _SLICE

    def _run(self, limit: int) -> None:
        ready = self._ready
        try:
            while ready and limit:
                handle = ready.popleft()
                if not handle._cancelled:  # noqa: SLF001 - asyncio's contract between a loop and its handles
                    handle._run()  # noqa: SLF001
                # Held a turn longer, a task that failed unseen would not report itself before the run is closed.
                del handle
                limit -= 1
        except SystemExit:
            # The task that raised it has it as its outcome; asyncio raises it here once more, to end the
            # process. A run that calls sys.exit() must not end a worker that holds a hundred others.
            return

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """A durable timer. Without a delay it is due on the next turn, with an endless one never."""
        if math.isnan(delay):
            raise ValueError("a timer needs a delay that is a number")
        timer = Timer(delay, callback, args, self, context)
        timer.fired, timer.stop = False, None
        if delay <= 0:
            self._ready.append(timer)
        elif delay < math.inf and not self._dropped:
            timer.start(self._clock, delay, self._ready.append)
        return timer

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        # asyncio.timeout(5) adds the time, which is taken off again here: what floating point leaves over was
        # not meant, and would stand in the record.
        return self.call_later(round(when - self.time(), 6), callback, *args, context=context)

    def _timer_handle_cancelled(self, timer: Timer) -> None:
        # asyncio.sleep cancels its timer also after it has fired; that is no news for the clock.
        if timer.stop is not None and not timer.fired and not self._dropped:
            timer.stop()

    def time(self) -> float:
        return self._clock.now()

    def is_running(self) -> bool:
        return _get_running_loop() is self

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Without effect: what asyncio's debug mode measures is wall time."""

    def get_exception_handler(self) -> Handler | None:
        return self._handler

    def set_exception_handler(self, handler: Handler | None) -> None:
        self._handler = handler

    def default_exception_handler(self, context: Trouble) -> None:
        self._on_trouble(context)

    def call_exception_handler(self, context: Trouble) -> None:
        # The code of a dropped run is cut off in the middle: what it complains of is our doing.
        if self._dropped:
            return
        try:
            if self._handler is not None:
                self._handler(self, context)
            else:
                self._on_trouble(context)
        except Exception:  # noqa: BLE001 - asyncio calls this where nothing may be raised
            _log.exception("the exception handler of a run failed")
