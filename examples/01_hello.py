"""Hello: a workflow is an ordinary async function. What its steps return is stored, so it can go on anywhere.

Every example runs by itself: `python examples/01_hello.py`. `kagzi.testing.environment` brings a server, a worker and a
private PostgreSQL, with a clock that the example moves. In production `Worker` and `Client` stand in its place.
"""

import asyncio

import kagzi.testing
from kagzi import Context, step, workflow


@step
async def greet(name: str) -> str:
    print(f"greeting {name}")
    return f"Hello, {name}"


@step
async def shout(text: str) -> str:
    print(f"shouting {text!r}")
    return f"{text.upper()}!"


@workflow
async def hello(ctx: Context, name: str) -> str:
    greeting = await ctx.step("greet", greet, name)
    # Nothing is held while it waits. Afterwards the function runs again from the top, and `greet` does not.
    await ctx.sleep("let it sink in", "1 day")
    return await ctx.step("shout", shout, greeting)


async def main() -> None:
    async with kagzi.testing.environment(workflows=[hello]) as env:
        handle = await env.client.start(hello, "Ada", id="hello-ada")
        await env.settle()
        print(f"the run is {(await handle.describe()).status}")
        await env.skip("1 day")
        print(await handle.result())


if __name__ == "__main__":
    asyncio.run(main())
