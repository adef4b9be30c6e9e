"""`kagzi demo`: an order workflow whose worker is killed in the middle. Real parts throughout: an embedded
PostgreSQL, a server, two worker processes, and SIGKILL. What ran is counted from notes the step bodies leave outside
the engine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kagzi.cli.problems import explained

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from kagzi.sdk.client import Client
    from kagzi.sdk.handle import Handle

_LEASE_SECS = 3.0
_NAMES = ("reserve", "charge", "label", "notify", "cool-off", "pack", "ship")
_KILL_IN = "pack"
_PATIENCE = 60.0


def demo(
    json: Annotated[
        bool, typer.Option("--json", help="Answer as JSON at the end; what is shown goes to stderr.")
    ] = False,
) -> None:
    """Show an order workflow survive the death of its worker."""
    import json as jsonlib

    with explained():
        from rich.console import Console

        from kagzi.cli.process import run

        counted = run(_play(Console(stderr=json)))
    if json:
        typer.echo(jsonlib.dumps(counted))


async def _play(console: Console) -> dict[str, Any]:
    from kagzi.embedded import Embedded
    from kagzi.sdk.client import Client
    from kagzi.server import logs
    from kagzi.server.app import Server
    from kagzi.server.settings import load
    from kagzi.store import migrate

    began = time.monotonic()
    logs.configure("console", "error")
    with tempfile.TemporaryDirectory(prefix="kagzi-demo-") as folder:
        console.print("[bold]Kagzi demo[/bold]: one order, six steps, and a worker that dies in the middle.\n")
        console.print("starting an embedded PostgreSQL, a server and a worker …")
        async with Embedded(Path(folder) / "postgres") as database:
            await migrate.apply(database.url)
            settings = load({"server_port": 0, "worker_visibility_timeout_secs": _LEASE_SECS})
            server = Server(settings, database.url)
            await server.start()
            try:
                async with Client(server.address) as client:
                    counted = await _Demo(console, client, server.address, Path(folder) / "notes").play()
            finally:
                await server.stop(1.0)
    console.print(f"\nIt took {time.monotonic() - began:.0f} s. What to try next:")
    console.print("  [bold]make dev[/bold]     a server to write your own workflows against")
    console.print("  [bold]README.md[/bold]    a first workflow in forty lines")
    return counted


class _Demo:
    """The play: start, watch, kill, watch, count."""

    def __init__(self, console: Console, client: Client, address: str, notes: Path) -> None:
        self._console = console
        self._client = client
        self._address = address
        self._notes = notes
        self._notes.touch()
        self._killed = ""

    async def play(self) -> dict[str, Any]:
        """What the order returned, and which steps ran once and which again."""
        from rich.live import Live

        from kagzi.cli.order import Order, fulfil

        first = self._worker()
        handle = await self._client.start(fulfil, Order("42", ["tea", "cups"], 2_450), id="order-42")
        with Live(console=self._console, refresh_per_second=10, transient=False) as live:
            await self._until(live, handle, lambda: self._ran(_KILL_IN) > 0)
            os.kill(first.pid, signal.SIGKILL)
            await asyncio.to_thread(first.wait)
            self._killed = (
                f"worker {first.pid} was killed (SIGKILL) while it ran '{_KILL_IN}'. Its lease is {_LEASE_SECS:.0f} s "
                "in this demo (30 s by default); then the run goes to another worker."
            )
            second = self._worker()
            try:
                result: list[Any] = []
                waiting = asyncio.create_task(handle.result(timeout=_PATIENCE))
                waiting.add_done_callback(result.append)
                await self._until(live, handle, lambda: bool(result))
                output = await waiting
            finally:
                second.send_signal(signal.SIGTERM)
                await asyncio.to_thread(second.wait)
        return self._count(output, first.pid, second.pid)

    def _worker(self) -> subprocess.Popen[bytes]:
        # Not through the event loop: uvloop forks, and gRPC reports every fork of a process that uses it.
        return subprocess.Popen(
            [sys.executable, "-m", "kagzi.cli", "worker", "kagzi.cli.order", "--url", self._address],
            env={**os.environ, "KAGZI_DEMO_NOTES": str(self._notes)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    async def _until(self, live: Any, handle: Handle[Any], condition: Any) -> None:
        until = time.monotonic() + _PATIENCE
        while not condition():
            if time.monotonic() > until:
                raise typer.Exit(1)
            live.update(self._picture(await handle.steps()))
            await asyncio.sleep(0.1)
        live.update(self._picture(await handle.steps()))

    def _picture(self, steps: Any) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(title=None, expand=False)
        for column in ("step", "state", "attempt", "ran (times, by worker)"):
            table.add_column(column)
        known = {step.step_id: step for step in steps}
        ran = self._by_step()
        for name in _NAMES:
            step = known.get(name)
            state = "" if step is None else step.status.lower()
            style = {"completed": "green", "running": "yellow", "failed": "red"}.get(state, "dim")
            by = ", ".join(f"{count} x {pid}" for pid, count in ran.get(name, {}).items())
            table.add_row(name, Text(state, style=style), str(step.attempt) if step else "", by)
        return Group(table, Text(self._killed, style="bold red"))

    def _by_step(self) -> dict[str, Counter[str]]:
        ran: dict[str, Counter[str]] = {}
        for line in self._notes.read_text(encoding="utf-8").splitlines():
            name, pid = line.split()
            ran.setdefault(name, Counter())[pid] += 1
        return ran

    def _ran(self, name: str) -> int:
        return sum(self._by_step().get(name, Counter()).values())

    def _count(self, output: str, first: int, second: int) -> dict[str, Any]:
        ran = self._by_step()
        once = [name for name, counts in ran.items() if sum(counts.values()) == 1]
        again = [name for name, counts in ran.items() if sum(counts.values()) > 1]
        self._console.print(f"\n[bold green]The order was fulfilled:[/bold green] {output}")
        self._console.print(f"  ran once: {', '.join(once)}")
        self._console.print(
            f"  ran again: {', '.join(again)} (worker {first} died in the middle of it, worker {second} finished it)"
        )
        if again != [_KILL_IN] or len(once) != 5:
            self._console.print("[red]That is not what should have happened.[/red]")
            raise typer.Exit(1)
        return {"output": output, "ran_once": once, "ran_again": again}
