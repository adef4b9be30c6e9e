"""Workflows and automations for commands to act on, run by a worker process. What the code of `fickle` asks for is
decided by a file outside, as a deployment would.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kagzi import Automation, Context, MutateContext, NonRetryable, PrepareContext, Prepared, mutation, step, workflow
from tests.automations_sdk import declared

VARIABLE = "KAGZI_TEST_FICKLE"


@step
async def double(number: int) -> int:
    return 2 * number


@step
async def refuse() -> None:
    raise NonRetryable("no such [card] <b>")


@step(effect=True)
async def pay() -> str:
    raise ConnectionError("nobody knows whether it was paid")


@workflow
async def twice(ctx: Context, number: int) -> int:
    return await ctx.step("double", double, number)


@workflow
async def hopeless(ctx: Context) -> None:
    await ctx.step("refuse", refuse)


@workflow
async def patient(ctx: Context) -> str:
    return await ctx.receive("go", str) or ""


@workflow
async def doubtful(ctx: Context) -> str:
    return await ctx.step("pay", pay)


@workflow
async def fickle(ctx: Context) -> int:
    name = Path(os.environ[VARIABLE]).read_text(encoding="utf-8")
    number = await ctx.step(name, double, 1)
    await ctx.receive("go", str)
    return number


@mutation
async def send(what: str) -> str:
    raise ConnectionError(f"{what} got lost")


inbox = declared.inbox("inbox")
post = Automation("post", accepts="mail")


@post.consumer(subscribe="mail")
class Send:
    async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
        found = await ctx.peek("mail", limit=1)
        return Prepared(reserve={"mail": [event.id for event in found]}, title="Send a mail")

    async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        await ctx.mutate(send, "hello")
