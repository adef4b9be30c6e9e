"""Scheduling: runs that start later, and schedules that start runs by cron, by interval, or in plain words."""

import asyncio

import kagzi.testing
from kagzi import Context, step, workflow


@step
async def send(what: str, when: str) -> None:
    print(f"{what} of {when}")


@workflow
async def report(ctx: Context, what: str) -> None:
    # The slot it was started for, which is the same however late the run began.
    when = ctx.scheduled_for or ctx.now()
    await ctx.step("send", send, what, f"{when:%A %H:%M}" if ctx.scheduled_for else "right now")


async def main() -> None:
    async with kagzi.testing.environment(workflows=[report]) as env:
        schedules = env.client.schedules
        nightly = await schedules.create("nightly", report, "nightly report", cron="0 2 * * mon", overlap="skip")
        friday = await schedules.create("friday", report, "weekly report", text="every friday at 5pm")

        for schedule in (nightly, friday):
            info = await schedule.describe()
            [first, *_] = await schedule.next_fires(3)
            print(f"{info.id}: {info.words}, next on a {first:%A}")

        await env.skip("1 week")
        print(f"nightly has started {(await nightly.describe()).runs_started} run")

        await nightly.pause("nobody reads it")
        await friday.delete()
        await env.skip("1 week")
        print(f"nightly is {(await nightly.describe()).status}")

        handle = await env.client.start(report, "delayed report", delay="3h")
        await env.skip("3h")
        await handle.result()


if __name__ == "__main__":
    asyncio.run(main())
