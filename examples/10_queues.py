"""Queues: which workers run what. A worker serves one queue, holds as many runs as it is told, urgent ones first."""

import asyncio

import kagzi.testing
from kagzi import Context, Worker, step, workflow


@step
async def render(title: str) -> None:
    print(f"  rendering {title}")


@workflow(queue="video")
async def video(ctx: Context, title: str) -> None:
    await ctx.step("render", render, title)


@workflow
async def upload(ctx: Context, title: str) -> str:
    # A child waits in the queue of its own workflow.
    await ctx.run_child("video", video, title)
    return f"{title} is online"


async def main() -> None:
    async with kagzi.testing.environment(workflows=[upload]) as env:
        handle = await env.client.start(upload, "Holidays")
        await env.settle()
        # Priorities go from 0 to 4, higher first.
        later = [await env.client.start(video, f"a film of priority {given}", priority=given) for given in (0, 2, 4)]
        print("nobody serves the queue 'video' yet:")
        async for run in env.client.runs(queue="video", status="PENDING"):
            print(f"  {run.status} with priority {run.priority}")

        print("a worker comes that holds one run at a time:")
        async with Worker(env.url, workflows=[video], queue="video", concurrency=1):
            print(await handle.result())
            for one in later:
                await one.result()


if __name__ == "__main__":
    asyncio.run(main())
