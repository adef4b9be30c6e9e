"""Effects for the tests of unknown outcomes. Each body marks outside the engine that it ran; in a process that is to be
killed it then hangs, so that nobody learns what became of it.
"""

import asyncio
import os
from typing import Any

from kagzi import Absent, Applied, Context, NotApplied, Retry, StepFailed, Unclear, step, workflow
from tests.sdk.rig import Marks
from tests.sdk.scenes import DOOMED

QUICKLY = Retry(max_attempts=3, initial="1ms")


async def _happen(run_id: str) -> str:
    Marks.leave(f"charged {run_id}")
    if os.environ.get(DOOMED):
        print(f"charged {run_id}", flush=True)  # noqa: T201 - how it speaks to the test
        await asyncio.Event().wait()
    return "paid"


@step(effect=True, retry=QUICKLY)
async def charge(run_id: str, answer: str) -> str:
    return await _happen(run_id)


@step(effect=True, retry=QUICKLY)
async def charge_blindly(run_id: str) -> str:
    return await _happen(run_id)


asked: list[str] = []


@charge.reconcile
async def look(key: str, run_id: str, answer: str) -> Any:
    asked.append(key)
    match answer:
        case "applied":
            return Applied("paid before")
        case "absent":
            return Absent
        case "broken":
            raise ConnectionError("the bank is away")
        case "nonsense":
            return "yes"
        case "later" if len(asked) > 2:
            return Applied("paid before, as it turned out")
    return Unclear()


@workflow
async def pay(ctx: Context, answer: str) -> str:
    try:
        if answer == "nobody":
            return await ctx.step("charge", charge_blindly, ctx.run_id)
        return await ctx.step("charge", charge, ctx.run_id, answer)
    except StepFailed as error:
        return f"{error.type}: {error.message}"


failing: list[BaseException] = []


@step(effect=True, retry=QUICKLY)
async def doubtful() -> str:
    Marks.leave("tried")
    if failing:
        raise failing.pop(0)
    return "done"


@workflow
async def attempt(ctx: Context) -> str:
    try:
        return await ctx.step("do", doubtful)
    except StepFailed as error:
        return f"{error.type} after {error.attempts}"


def not_applied() -> NotApplied:
    return NotApplied("refused at the door")
