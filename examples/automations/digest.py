"""A daily digest: mails are gathered until nine o'clock, then sent as one.

`prepare` leaves the mails where they are and says when it wants to look again; that survives restarts.

    python -m examples.automations.digest
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import kagzi.testing
from kagzi import Automation, MutateContext, PrepareContext, Prepared, mutation

digest = Automation("digest", accepts=["mail"])
sent: list[str] = []


def next_nine(now: datetime) -> datetime:
    """Nine o'clock, today or tomorrow."""
    nine = now.replace(hour=9, minute=0, second=0, microsecond=0)
    return nine if nine > now else nine + timedelta(days=1)


@digest.consumer(subscribe=["mail"])
class Daily:
    """Sends what came in since yesterday."""

    async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
        """Takes what came before the last nine o'clock. The mails decide, not why this runs: a run that comes late, or
        again after a failure, finds the same.
        """
        wake_at = next_nine(ctx.now())
        since = wake_at - timedelta(days=1)
        mails = [mail for mail in await ctx.peek("mail", limit=1_000) if mail.published_at < since]
        if not mails:
            return Prepared(wake_at=wake_at)
        return Prepared(
            reserve={"mail": [mail.id for mail in mails]},
            data=[mail.payload for mail in mails],
            title=f"Send a digest of {len(mails)} mails",
            wake_at=wake_at,
        )

    async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        """Sends them as one."""
        await ctx.mutate(send, prepared.data)


@mutation
async def send(subjects: list[str]) -> None:
    """Stands for a mail server."""
    sent.append(", ".join(subjects))


async def main() -> None:
    """Two days with mails."""
    async with kagzi.testing.environment(automations=[digest]) as env:
        for day, subjects in enumerate((["Invoice", "Complaint"], ["Thanks"])):
            for subject in subjects:
                await env.client.automations.publish("digest", "mail", id=f"{day}/{subject}", payload=subject)
            await env.settle()
            info = await env.client.automations.get("digest")
            print(f"{info.pending} mails wait until {info.handlers['Daily'].wake_at:%H:%M}")
            await env.skip("24h")
            print(f"sent: {sent[-1]}")


if __name__ == "__main__":
    asyncio.run(main())
