"""`kagzi automations check`: what is wrong with the automations of a module, before anything runs. It asks nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kagzi.cli.problems import FAILED
from kagzi.cli.remote import Json, end

if TYPE_CHECKING:
    from kagzi.automations.automation import Automation
    from kagzi.automations.checks import Finding


def check(
    module: Annotated[str, typer.Argument(help="Where they are declared: shop.inbox, or shop/inbox.py.")],
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Also call each `prepare` against empty topics, and check what it returns."),
    ] = False,
    json: Json = False,
) -> None:
    """Check the automations of MODULE without a server; ends with 1 when one of them cannot run."""
    from kagzi.automations.automation import Automation
    from kagzi.sdk.collect import instances
    from kagzi.sdk.errors import ConfigError

    found: list[Automation] = []
    try:
        found = instances(module, Automation)
    except ConfigError as error:
        end(str(error))
    if not found:
        end(f"{module} holds no automation: make one there, as inbox = Automation('inbox')")
    findings = {automation: _findings(automation, dry_run=dry_run) for automation in found}
    if json:
        _print_json(findings)
    else:
        _print(findings)
    if any(finding.is_error for several in findings.values() for finding in several):
        raise typer.Exit(FAILED)


def _findings(automation: Automation, *, dry_run: bool) -> list[Finding]:
    import asyncio

    from kagzi.automations.rehearsal import rehearse

    found = automation.check()
    if dry_run and not any(finding.is_error for finding in found):
        found += asyncio.run(rehearse(automation))
    return found


def _print(findings: dict[Automation, list[Finding]]) -> None:
    for automation, several in findings.items():
        names = ", ".join(handler.name for handler in automation.handlers) or "no handlers"
        typer.echo(f"{automation.name} ({names}): {_verdict(several)}")
        for finding in several:
            typer.secho(f"  {finding.level}: {finding}", fg="red" if finding.is_error else "yellow")


def _verdict(several: list[Finding]) -> str:
    errors = sum(finding.is_error for finding in several)
    if not several:
        return "all is well"
    return f"{errors} errors, {len(several) - errors} warnings"


def _print_json(findings: dict[Automation, list[Finding]]) -> None:
    import json
    from dataclasses import asdict

    document = [
        {
            "automation": automation.name,
            "definition_hash": "" if any(finding.is_error for finding in several) else automation.definition_hash,
            "findings": [asdict(finding) for finding in several],
        }
        for automation, several in findings.items()
    ]
    typer.echo(json.dumps(document, indent=2))
