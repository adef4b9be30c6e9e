"""The run loop: the small deterministic event loop on which the code of one run and all its tasks execute.

It is a queue of ready callbacks and nothing else. asyncio's own tools (`gather`, `TaskGroup`, `wait`,
`timeout`, locks, queues) run on it unchanged, because they only need a loop. The same completions handed over
in the same order make the same code take the same way, in every process of one Python version. Between
versions asyncio itself differs: from 3.12 `wait_for` starts its coroutine a turn earlier. Time comes from the
run's `Clock`. It never does I/O, never waits, never touches a thread, and knows nothing of steps or history:
an execution owns it, resolves futures, and pumps.
"""

from kagzi.sdk.loop.errors import Dropped, NotInWorkflow, Spinning
from kagzi.sdk.loop.run import RunLoop, require_outside
from kagzi.sdk.loop.task import RunTask
from kagzi.sdk.loop.timer import Clock

__all__ = ["Clock", "Dropped", "NotInWorkflow", "RunLoop", "RunTask", "Spinning", "require_outside"]
