"""From an inbox to a sheet: a producer reads mails, a consumer adds a row for each, another tells about new rows.

Every mail becomes one row, also when the sheet does its work and the answer is lost: then the reconciler finds out.

    python -m examples.automations.inbox          shows it, with a database and a clock of its own
    kagzi worker examples/automations/inbox.py    runs it, with OUTSIDE_URL naming a fake outside
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import kagzi
import kagzi.testing
from kagzi import (
    Absent,
    Applied,
    Automation,
    MutateContext,
    NextContext,
    Outcome,
    PrepareContext,
    Prepared,
    ProducerContext,
    Transient,
    mutation,
)

inbox = Automation("email-to-sheets")


@inbox.producer(every="5m", publishes=["email.received"])
async def poll(ctx: ProducerContext, state: dict[str, Any] | None) -> dict[str, Any]:
    """Reads what is new, and remembers how far it has come."""
    cursor = (state or {}).get("cursor", 0)
    for mail in await call("GET", f"/mails?after={cursor}"):
        source = ctx.register_input(
            "outside", "email", str(mail["number"]), title=f"{mail['sender']}: {mail['subject']}"
        )
        ctx.publish("email.received", id=str(mail["number"]), payload=mail, input=source)
        cursor = max(cursor, mail["number"])
    return {"cursor": cursor}


@inbox.consumer(subscribe=["email.received"], publishes=["row.created"])
class AddRow:
    """Adds one row for one mail."""

    async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
        """Takes the oldest mail."""
        mails = await ctx.peek("email.received", limit=1)
        if not mails:
            return Prepared()
        mail = mails[0].payload
        return Prepared(
            reserve={"email.received": [mails[0].id]}, data=mail, title=f"Add a row for {mail['subject']!r}"
        )

    async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        """Asks for the row."""
        mail = prepared.data
        row = {"who": mail["sender"], "what": mail["subject"]}
        await ctx.mutate(append_row, "reports", row, mail.get("trouble", ""))

    async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> None:
        """Tells that there is a new row."""
        if outcome.applied:
            ctx.publish("row.created", id=str(outcome.result), payload=prepared.data["subject"])


@inbox.consumer(subscribe=["row.created"])
class Tell:
    """Says what was done."""

    async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
        """Takes whatever is new."""
        rows = await ctx.peek("row.created")
        return Prepared(reserve={"row.created": [row.id for row in rows]}, data=[row.payload for row in rows])

    async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> dict[str, Any]:
        """Counts what was told."""
        for subject in prepared.data:
            ctx.logger.info("a row was added for %r", subject)
        return {"told": (ctx.state or {}).get("told", 0) + len(prepared.data)}


@mutation(timeout="5s")
async def append_row(sheet: str, row: dict[str, str], trouble: str = "") -> int:
    """Adds the row, under a key by which it can be found again."""
    fault = f"?fault={trouble}" if trouble else ""
    added = await call("POST", f"/rows{fault}", {"key": kagzi.idempotency_key(), "sheet": sheet, **row})
    number: int = added["number"]
    return number


@append_row.reconcile
async def find_row(key: str, sheet: str, row: dict[str, str], trouble: str = "") -> Applied | Absent:
    """Looks whether the row is there."""
    found = await call("GET", f"/rows?{urlencode({'key': key})}")
    return Applied(found[0]["number"]) if found else Absent()


async def call(method: str, path: str, body: Any = None) -> Any:
    """One request to the outside. What it cannot do now is worth another try."""
    url = f"{os.environ['OUTSIDE_URL']}{path}"
    data = None if body is None else json.dumps(body).encode()

    def send() -> Any:
        request = urllib.request.Request(url, data=data, method=method)  # noqa: S310 - the address is ours
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return json.load(answer)

    try:
        return await asyncio.to_thread(send)
    except urllib.error.URLError as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise Transient(f"the outside does not answer: {error}") from error


@contextmanager
def outside() -> Iterator[str]:
    """A fake outside in a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, str(Path(__file__).with_name("outside.py")), "--log", f"{directory}/log"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield f"http://127.0.0.1:{int(process.stdout.readline())}"
            finally:
                process.kill()


async def main() -> None:
    """Three mails, one of which meets a sheet that does its work and answers with an error."""
    with outside() as url:
        os.environ["OUTSIDE_URL"] = url
        for subject, trouble in (("Invoice", ""), ("Complaint", "lost"), ("Thanks", "")):
            await call("POST", "/mails", {"sender": "ann@example.com", "subject": subject, "trouble": trouble})
        async with kagzi.testing.environment(automations=[inbox]) as env:
            await env.settle()
            for row in await call("GET", "/rows"):
                print(f"row {row['number']}: {row['what']}")
            lineage = await env.client.automations.input("email-to-sheets", "outside", "email", "2")
            print(f"{lineage.input.title!r} is {lineage.input.status}:")
            for change in lineage.mutations:
                print(f"  {change.tool}: {change.status} after {change.checks} checks")


if __name__ == "__main__":
    asyncio.run(main())
