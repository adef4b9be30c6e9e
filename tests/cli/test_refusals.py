"""What a server or the client refuses is told by the option or the argument that was typed."""

from __future__ import annotations

import asyncio

from typer.testing import CliRunner, Result

from kagzi.cli import app
from kagzi.cli.problems import FAILED, USAGE
from tests.sdk.serving import serving

LONG = "a" * 3_000
UNKNOWN = "01901234-5678-7abc-8def-0123456789ab"
# The command, how it ends, and what it says.
REFUSED: list[tuple[list[str], int, str]] = [
    (["keys", "revoke", "nope"], USAGE, "{key_id} is no UUID of 36 characters: 'nope'. `kagzi keys list` shows them."),
    (
        ["keys", "revoke", UNKNOWN],
        FAILED,
        "(--namespace); retention may have removed it. `kagzi keys list` shows them.",
    ),
    (["workers", "show", UNKNOWN], FAILED, "`kagzi workers list --all` shows them."),
    (["schedules", "create", "x", "many", "--cron", "0" * 300], USAGE, "--cron has 300 bytes, and at most 255"),
    (["schedules", "create", "x", "many", "--cron", "99 * * * *"], USAGE, "--cron: minute 99 is outside 0-59."),
    (["schedules", "create", "x", "many", "--every", "1s", "--attempts", "99999"], USAGE, "--attempts 99999 must be"),
    (["schedules", "create", LONG, "many", "--every", "1s"], USAGE, "{id} must be 1 to 255 bytes"),
    (["schedules", "history", "x", "--template", "nope"], USAGE, "--template is no UUID of 36 characters: 'nope'."),
    (["start", LONG], USAGE, "{type} must be 1 to 255 bytes"),
    (["start", "waits", "--label", f"k={LONG}"], USAGE, "--label 'k' must be 1 to 255 bytes"),
    (["start", "waits", "--priority", "9"], USAGE, "--priority 9 must be"),
    (["runs", "signal", UNKNOWN, LONG], USAGE, "{name} has 3000 bytes"),
    (["runs", "signal", UNKNOWN, "go", "--id", "nope"], USAGE, "--id is no UUID of 36 characters: 'nope'."),
    (["namespaces", "create", "x", "--description", LONG], USAGE, "--description has 3000 bytes"),
    (["automations", "pause", LONG], USAGE, "{name} has 3000 bytes"),
]


async def test_a_refusal_names_what_was_typed_and_where_ids_are_found(database_url: str) -> None:
    async with serving(database_url) as server:
        variables = {"KAGZI_URL": server.address, "NO_COLOR": "1", "TERM": "dumb"}

        def run(words: list[str]) -> Result:
            return CliRunner().invoke(app, words, env=variables, prog_name="kagzi")

        for words, code, said in REFUSED:
            result = await asyncio.to_thread(run, words)
            assert (result.exit_code, result.stdout) == (code, ""), (words, result.output)
            [line] = result.stderr.splitlines()
            assert line.startswith("error: ")
            assert said in line
            # Nothing lists an id that its sender chooses.
            assert ("shows them" in line) == ("shows them" in said)
