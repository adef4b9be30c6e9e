"""Fan-out: children are runs of their own. They spread over all workers, and each is retried and seen by itself."""

import asyncio

import kagzi.testing
from kagzi import Context, RunFailed, step, workflow


@step
async def count_words(text: str) -> int:
    return len(text.split())


@workflow
async def page(ctx: Context, text: str) -> int:
    if not text:
        raise ValueError("an empty page")
    return await ctx.step("count", count_words, text)


@workflow
async def book(ctx: Context, pages: list[str]) -> str:
    few = asyncio.Semaphore(10)  # at most ten children at a time

    async def one(number: int, text: str) -> int | None:
        async with few:
            try:
                return await ctx.run_child(f"page {number}", page, text, labels={"page": str(number)})
            except RunFailed as error:
                ctx.logger.warning("page %d: %s", number, error.message)
                return None

    counts = await asyncio.gather(*(one(number, text) for number, text in enumerate(pages, 1)))
    read = [count for count in counts if count is not None]
    return f"{sum(read)} words on {len(read)} of {len(pages)} pages"


async def main() -> None:
    async with kagzi.testing.environment(workflows=[book, page]) as env:
        pages = ["it was a dark night"] * 30 + [""] + ["the end"] * 9
        handle = await env.client.start(book, pages)
        print(await handle.result())
        async for run in env.client.runs(parent=handle.run_id, status="FAILED"):
            print(f"page {run.labels['page']} is {run.status}: {run.error.message if run.error else ''}")


if __name__ == "__main__":
    asyncio.run(main())
