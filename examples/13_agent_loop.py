"""A loop in which a model decides and tools act. Every answer of the model is paid for once, every tool is called once,
and what is dangerous waits for a person. A crash in turn forty goes on in turn forty.
"""

import asyncio
from dataclasses import dataclass, field

import kagzi.testing
from kagzi import Context, Retry, Step, step, workflow


@dataclass(frozen=True)
class Call:
    """What the model wants: a tool and its argument, or `finish` with the answer."""

    tool: str
    argument: str


@dataclass(frozen=True)
class Turn:
    call: Call
    result: str


@dataclass(frozen=True)
class Task:
    goal: str
    turns: list[Turn] = field(default_factory=list)


@step(retry=Retry(max_attempts=5, initial="2s"), timeout="2m")
async def think(goal: str, turns: list[Turn]) -> Call:
    """Stands for a call of a model."""
    script = [Call("search", goal), Call("delete", "the old backups"), Call("finish", "there is room again")]
    print(f"the model thinks, turn {len(turns) + 1}")
    return script[len(turns)]


@step
async def search(text: str) -> str:
    print(f"searching for {text!r}")
    return "the old backups fill the disk"


@step(effect=True)
async def delete(what: str) -> str:
    print(f"deleting {what}")
    return "deleted"


TOOLS: dict[str, Step[[str], str]] = {"search": search, "delete": delete}
DANGEROUS = {"delete"}


@workflow
async def solve(ctx: Context, task: Task) -> str:
    turns = list(task.turns)
    while True:
        call = await ctx.step("think", think, task.goal, turns)
        if call.tool == "finish":
            return call.argument
        result = "a person said no"
        if call.tool not in DANGEROUS or await permitted(ctx, call):
            result = await ctx.step(call.tool, TOOLS[call.tool], call.argument)
        turns.append(Turn(call, result))
        if len(turns) % 100 == 0:
            ctx.continue_as_new(Task(task.goal, turns[-20:]))  # keeps the history short


async def permitted(ctx: Context, call: Call) -> bool:
    await ctx.set_state({"asks": f"{call.tool} {call.argument}?"})
    return await ctx.receive("permission", bool, timeout="1 day") is True


async def main() -> None:
    async with kagzi.testing.environment(workflows=[solve]) as env:
        handle = await env.client.start(solve, Task("make room on the disk"))
        await env.settle()
        print(f"it asks: {(await handle.state())['asks']}")
        await handle.signal("permission", True)
        print(await handle.result())


if __name__ == "__main__":
    asyncio.run(main())
