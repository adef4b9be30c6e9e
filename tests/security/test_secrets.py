"""A whole small life of a server, as a user runs it, by a database role that may change rows and nothing else: and then
none of its secrets stand in any log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest

from kagzi import Client, Context, NonRetryable, Worker, workflow
from kagzi.errors import RunFailed, ServerError, Unauthorized
from tests.cli.test_cli import KAGZI, environment, kagzi
from tests.conformance.execution import new_id
from tests.database import Databases
from tests.house.tree import ROOT

CANARY = f"canary-{secrets.token_hex(8)}"


@workflow
async def order(ctx: Context, card: str) -> str:
    await ctx.set_state({"card": card})
    paid = await ctx.step("pay", pay, card)
    told = await ctx.receive("told", str)
    return f"{paid} {told}"


@workflow
async def broken(ctx: Context, card: str) -> str:
    raise NonRetryable("the card was refused")


async def pay(card: str) -> str:
    return f"paid with {card}"


@dataclass
class Life:
    """What a server left behind."""

    printed: str = ""
    result: str = ""
    secrets: dict[str, str] = field(default_factory=dict)


def grants() -> list[str]:
    """What the documentation tells to give to the server's role."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    return [line for line in block.strip().splitlines() if line]


async def make_role(url: str, role: str, password: str) -> None:
    connection = await asyncpg.connect(url)
    for statement in grants():
        await connection.execute(statement.replace("kagzi_server", role).replace("a long one", password))
    await connection.close()


async def drop_role(url: str, role: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(f"drop owned by {role}; drop role {role}")
    await connection.close()


async def live(address: str, key: str, site: str) -> str:
    """Runs, failures, refusals and mistakes, each with something that must not be logged."""
    worker = Worker(address, workflows=[order, broken], api_key=key)
    async with worker, Client(address, api_key=key) as client:
        handle = await client.start(order, CANARY, id="order-1")
        await handle.signal("told", CANARY)
        result = await handle.result(timeout=30)
        with pytest.raises(RunFailed):
            await client.execute(broken, CANARY)
        with pytest.raises(ServerError):
            await client.handle(new_id()).signal("told", CANARY)
        schedule = await client.schedules.create(f"nightly-{new_id()}", order, CANARY, every="1h")
        await schedule.trigger()
    async with Client(address, api_key=key[:-1] + ("x" if key[-1] != "x" else "y")) as client:
        with pytest.raises(Unauthorized):
            await client.start(order, CANARY)
    async with httpx.AsyncClient(base_url=site) as http:
        shown = {"authorization": f"Bearer {key}"}
        await http.get("/api/v1/runs", headers=shown)
        await http.post("/api/v1/runs", headers=shown, json={"workflow_type": 7, "input": CANARY})
        http.cookies.set("kagzi_key", key)
        await http.get("/")
    return str(result)


async def disturb(url: str) -> None:
    """Cuts every connection of the server, as a restart of the database would."""
    connection = await asyncpg.connect(url)
    await connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name like 'kagzi-%' and datname = current_database()"
    )
    await connection.close()


@pytest.fixture(scope="module")
def life(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    here = tmp_path_factory.mktemp("life")
    url, role, life = databases.create(), f"server_{secrets.token_hex(4)}", Life()
    life.secrets = {"payload": CANARY, "password": secrets.token_hex(12), "operator": secrets.token_urlsafe(33)}
    asyncio.run(make_role(url, role, life.secrets["password"]))
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    own = parts._replace(netloc=f"{role}:{life.secrets['password']}@{host}").geturl()
    variables = {"KAGZI_DB_URL": own, "KAGZI_ADMIN_KEY": life.secrets["operator"]}
    made = kagzi(
        "keys", "create", "--database", "--namespace", "shop", "--role", "admin", "--json", cwd=here, **variables
    )
    assert made.returncode == 0, made.stderr
    life.secrets["key"] = json.loads(made.stdout)["secret"]
    logs = logging.getLogger()
    heard = logging.FileHandler(here / "worker.log")
    logs.addHandler(heard)
    with (here / "server.log").open("w") as log:
        process = subprocess.Popen(
            [KAGZI, "server", "--port", "0", "--require-keys", "--log-level", "debug"],
            cwd=here,
            env=environment(**variables, KAGZI_COORDINATOR_INTERVAL_SECS="0.1"),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert process.stdout is not None
            address = process.stdout.readline().rpartition(" ")[2].strip()
            site = process.stdout.readline().rpartition(" ")[2].strip()
            life.result = asyncio.run(live(address, life.secrets["key"], site))
            asyncio.run(disturb(url))
            asyncio.run(live(address, life.secrets["key"], site))
        finally:
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=30)[0]
            logs.removeHandler(heard)
            heard.close()
    life.printed = said + "".join(Path(here / name).read_text() for name in ("server.log", "worker.log"))
    yield life
    asyncio.run(drop_role(url, role))
    databases.drop(url)


def test_no_secret_is_in_any_log(life: Life) -> None:
    assert "server_started" in life.printed
    assert [name for name, secret in life.secrets.items() if secret in life.printed] == []
    # The random bytes of a key alone would be as bad.
    assert life.secrets["key"].rpartition(".")[2] not in life.printed


def test_the_servers_role_needs_no_right_but_to_change_rows(life: Life) -> None:
    assert life.result == f"paid with {CANARY} {CANARY}"
    events = [json.loads(line) for line in life.printed.splitlines() if line.startswith("{")]
    assert {"server_started", "server_stopped"} <= {event["event"] for event in events}
    assert [event for event in events if event["event"] in {"loop_crashed", "call_failed"}] == []
    assert "permission denied" not in life.printed


async def test_such_a_role_can_change_no_schema(database_url: str) -> None:
    role, password = f"server_{secrets.token_hex(4)}", secrets.token_hex(12)
    await make_role(database_url, role, password)
    connection = await asyncpg.connect(database_url, user=role, password=password)
    try:
        for statement in (
            "create table kagzi.mine (a int)",
            "alter table kagzi.api_keys add column a int",
            "drop table kagzi.api_keys",
            "create function kagzi.now() returns int language sql as 'select 1'",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
    finally:
        await connection.close()
        await drop_role(database_url, role)
