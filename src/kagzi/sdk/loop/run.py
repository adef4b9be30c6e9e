"""`RunLoop`: the tasks and async generators of one run, how they are pumped, and how they are closed.

The owner resolves futures and calls `pump`, which returns when nothing more can move; or it calls `drop`,
after which no code of this run executes again. Both from a plain callback of the worker's loop only: from
Python 3.14 the current task belongs to the thread, and no task can be entered inside another.
"""

import asyncio
import logging
import sys
from asyncio import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar

from kagzi.sdk.loop.callbacks import Callbacks, Trouble, log_trouble
from kagzi.sdk.loop.errors import DO_THIS_IN_A_STEP, Dropped, NotInWorkflow
from kagzi.sdk.loop.task import RunFuture, RunTask, made_by_as_completed
from kagzi.sdk.loop.timer import Clock

T = TypeVar("T")

_log = logging.getLogger(__name__)

# The cleanup code of a dropped run gets this many turns to end; what never lets go is then closed by force.
_LAST_TURNS = 1_000


class RunLoop(Callbacks):
    """The event loop of one run.

    `on_trouble` hears what asyncio tells an exception handler: callbacks that raised, tasks whose failure
    nobody looked at. `max_callbacks` is what one pump may run before it is taken for `Spinning`.
    """

    __slots__ = ("_context", "_ended", "_futures", "_generators", "_numbers", "_sweep_at", "_tasks", "cancels")

    def __init__(
        self,
        clock: Clock,
        *,
        on_trouble: Callable[[Trouble], None] = log_trouble,
        max_callbacks: int = 100_000,
    ) -> None:
        super().__init__(clock, on_trouble, max_callbacks)
        # Both held strongly: what the garbage collector may end, ends at another moment in replay.
        self._tasks: list[RunTask[Any]] = []
        self._generators: list[AsyncGenerator[Any, Any]] = []
        self._sweep_at = 32
        self._numbers = self._futures = 0
        self._context: Context | None = None
        self._ended = False
        # Whether a task was ever cancelled: only then it matters who waits. To look costs more than to make a future.
        self.cancels = False

    @property
    def live_tasks(self) -> int:
        """How many tasks have not ended, the root included."""
        return len(self.live())

    @property
    def busy(self) -> bool:
        """Whether something of the run may be left besides its root, which is done. Cheap, for a run of one task."""
        return self._numbers > 1 or bool(self._generators)

    @property
    def dropped(self) -> bool:
        """The run is being closed, or is closed: what its code asks for must not be recorded."""
        return self._dropped

    def create_root(self, coro: Coroutine[Any, Any, T], context: Context) -> asyncio.Task[T]:
        """The task of the workflow function itself, in the context that belongs to its run."""
        self._context = context
        return self.create_task(coro, context=context)

    def pump(self) -> None:
        """Run what is ready, and what that makes ready, until the run is quiescent."""
        self._inside(self._run_all)

    def drop(self) -> None:
        """Close whatever of this run still lives: also how a loop is ended whose root is done.

        What a live task waits for is failed with `Dropped`, and again whatever its cleanup goes on to wait
        for. The clock is not told of timers. Failures nobody saw before are reported, later trouble is not.
        """
        # Released while someone listens: a task that failed unseen reports itself on the way out.
        self._tasks = self.live()
        if self._tasks or self._generators:
            self._inside(self._unwind)
        else:
            self._end()

    def _inside(self, work: Callable[[], None]) -> None:
        outer = _get_running_loop()
        if outer is self or (outer is not None and asyncio.current_task(outer) is not None):
            raise RuntimeError("pump and drop a run from a plain callback (loop.call_soon), not inside a task")
        hooks = sys.get_asyncgen_hooks()
        _set_running_loop(self)
        # By position: by keyword this costs three times as much. No finalizer: none is ever garbage.
        sys.set_asyncgen_hooks(self._adopt, None)
        try:
            work()
        finally:
            sys.set_asyncgen_hooks(*hooks)
            _set_running_loop(outer)

    def _unwind(self) -> None:
        self._dropped = True
        closing = self._tasks
        errors: list[Dropped] = []
        try:
            self._interrupt(errors)
            self._sweep()
            if self._generators:
                self._tasks.append(RunTask(self.shutdown_asyncgens(), loop=self, context=self._context))
                self._interrupt(errors)
            for task in self.live():
                if not task.abandon():
                    _log.warning("a dropped run left behind %r, which catches BaseException and goes on", task)
        finally:
            # A traceback holds frames, those the future or the task, and that the traceback: left alone,
            # every dropped run would wait for the garbage collector.
            for task in (*closing, *self._tasks):
                task.forget()
            for error in errors:
                error.__traceback__ = error.__context__ = None
            self._end()

    def _interrupt(self, errors: list[Dropped]) -> None:
        # Futures fail one turn at a time, never at birth: awaiting one that has failed already does not
        # yield, and code that catches BaseException in a loop would not come back here.
        for _ in range(_LAST_TURNS):
            live = self.live()
            # The youngest first: a child hears Dropped before the TaskGroup of its parent would cancel it.
            for task in reversed(live):
                error = Dropped()
                if task.interrupt(error):
                    errors.append(error)
            if not live or not self._ready:
                return
            self._run(len(self._ready))

    def _end(self) -> None:
        self._dropped = self._ended = True
        # A queue that keeps nothing: a future resolved too late, or code left behind, schedules into a void.
        self._ready = deque(maxlen=0)
        self._tasks = []
        self._generators = []

    def live(self) -> list[RunTask[Any]]:
        """The tasks that have not ended, in the order in which they were made."""
        return [task for task in self._tasks if not task.done()]

    def _sweep(self) -> None:
        self._tasks = self.live()
        # A finished generator has no frame; one compiled by Cython never shows any.
        self._generators = [each for each in self._generators if getattr(each, "ag_frame", each) is not None]
        # Growing with what is left keeps the cost of sweeping constant for each task made.
        self._sweep_at = 32 + 2 * (len(self._tasks) + len(self._generators))

    def _adopt(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators.append(generator)
        if len(self._generators) > self._sweep_at:
            self._sweep()

    def close_generators(self) -> list[RunTask[Any]]:
        """Begins to close the generators that were begun and not finished; their cleanup may wait. The task that does
        it, if there are any.
        """
        self._sweep()
        if not self._generators:
            return []
        return [self.create_task(self.shutdown_asyncgens(), context=self._context)]

    async def shutdown_asyncgens(self) -> None:
        """Close the generators that were begun and not finished, in the order in which they were begun."""
        await asyncio.gather(*(each.aclose() for each in self._generators), return_exceptions=True)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **options: Any,
    ) -> RunTask[T]:
        """A task of this run, numbered and named in the order of creation. `options`: of later Pythons."""
        if self._ended:
            coro.close()
            raise Dropped
        if made_by_as_completed(sys._getframe(1)):  # noqa: SLF001 - 0.1 µs, and the only witness
            coro.close()
            raise NotInWorkflow(
                "asyncio.as_completed() over coroutines",
                "it would start them in no fixed order; give it tasks, made with asyncio.create_task()",
            )
        self._numbers = number = self._numbers + 1
        # asyncio's own names count through the process: code that reads one would see another in replay.
        named = f"Task-{number}" if name is None else str(name)
        task: RunTask[T] = RunTask(coro, loop=self, name=named, context=context, **options)
        task.number = number
        self._tasks.append(task)
        if len(self._tasks) > self._sweep_at:
            self._sweep()
        return task

    def create_future(self) -> asyncio.Future[Any]:
        """A future that may land in a set.

        One that only the owner and a single coroutine ever see may be a plain `asyncio.Future(loop=loop)`,
        which is 0.8 µs quicker to make and await (3.11).
        """
        if self.cancels:
            task = asyncio.current_task(self)
            if isinstance(task, RunTask):
                task.about_to_wait()
        future = RunFuture(loop=self)
        self._futures = future.number = self._futures + 1
        return future

    def get_task_factory(self) -> None:
        return None

    def is_closed(self) -> bool:
        return self._ended


def require_outside(call: str, instead: str = DO_THIS_IN_A_STEP) -> None:
    """Raises NotInWorkflow when the code of a run calls this, which must not leave its loop."""
    if isinstance(_get_running_loop(), RunLoop):
        raise NotInWorkflow(call, instead)
