"""What docs/security.md tells to type is typed, and the role it gives a server is enough for one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

import kagzi
from kagzi import Context, workflow
from kagzi.server.app import Server
from kagzi.server.settings import Settings
from tests.docs.blocks import of
from tests.docs.terminal import Terminal
from tests.security.authority import Authority

SECURITY = "docs/security.md"


def test_turning_it_on_goes_as_told(database_url: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.sign("server")
    terminal = Terminal(tmp_path, KAGZI_SERVER_PORT="0", KAGZI_HTTP_PORT="0")
    first, later = of(SECURITY, "sh")
    *steps, serve = first.replace("postgresql://…", database_url).strip().splitlines()
    secret = terminal.type("\n".join(steps)).strip().splitlines()[-1]
    assert secret.startswith("kagzi_shop.")
    terminal.variables["KAGZI_DB_URL"] = database_url
    # Tests listen on loopback alone.
    here = serve.replace("--host 0.0.0.0", "--require-keys")
    assert here != serve
    with terminal.running(here, "dashboard: ") as said:
        terminal.variables |= {"KAGZI_TLS_CA": str(authority.cert)}
        address = said.split("listens on ")[1].split()[0]
        typed = later.replace("kagzi.example.org:50051", address).replace("kagzi_shop.…", secret)
        made, listed, revoked = re.split(r"^(?=kagzi keys (?:list|revoke))", typed, flags=re.MULTILINE)
        terminal.type(made)
        site = said.split("dashboard: ")[1].split()[0]
        [asked] = of("docs/http.md", "console")
        keyed = asked.replace("curl", f"curl -sS --fail-with-body --cacert {authority.cert}")
        typed = f"{made.splitlines()[0]}\n{keyed.replace('https://kagzi.example', site)}"
        assert json.loads(terminal.type(typed)) == {"runs": [], "next_page_token": ""}
        exported = made.splitlines()[0]
        found = terminal.type(f"{exported}\n{listed.strip()} --json")
        key_id = re.findall(r'"key_id": "([^"]+)"', found)[0]
        assert "workers in Frankfurt" in found
        assert key_id in terminal.type(f"{exported}\n{revoked.replace('0192…', key_id)}")


@workflow
async def greet(ctx: Context, name: str) -> str:
    return f"hello {name}"


async def test_a_server_with_the_role_that_is_told_does_its_work(database_url: str) -> None:
    [grants] = of(SECURITY, "sql")
    owner = await asyncpg.connect(database_url)
    try:
        await owner.execute(grants)
        parts = urlsplit(database_url)
        place = parts.netloc.rpartition("@")[2]
        url = urlunsplit(parts._replace(netloc=f"kagzi_server:a%20long%20one@{place}"))
        server = Server(Settings(server_port=0), url)
        await server.start()
        try:
            async with kagzi.Worker(server.address, workflows=[greet]), kagzi.Client(server.address) as client:
                assert await client.execute(greet, "Ada") == "hello Ada"
        finally:
            await server.stop(1.0)
        assert await owner.fetchval("select count(*) from kagzi.workflow_runs") == 1
    finally:
        await owner.execute("drop owned by kagzi_server; drop role kagzi_server")
        await owner.close()
