"""`kagzi automations`: looks after automations. Every command does what the client can do, and answers as a table or as
JSON; `check` needs no server.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kagzi.cli import declarations
from kagzi.cli.remote import Json, Namespace, Url, document, end, reached
from kagzi.cli.suggestions import AUTOMATIONS, words

if TYPE_CHECKING:
    from kagzi.sdk.automation_info import AutomationInfo

app = typer.Typer(help="Look after automations.", no_args_is_help=True)
app.command()(declarations.check)

Name = Annotated[str, typer.Argument(help="The automation's name.", autocompletion=AUTOMATIONS)]
Limit = Annotated[int, typer.Option(help="At most so many.", min=1)]
Source = Annotated[str, typer.Argument(help="Where the input is from, as gmail.")]
Type = Annotated[str, typer.Argument(help="What it is there, as email.")]
Id = Annotated[str, typer.Argument(help="Its id there.")]


_STATUS = words("ACTIVE", "PAUSED", "BLOCKED")


class Answer(StrEnum):
    """What a person says of a mutation."""

    HAPPENED = "happened"
    DID_NOT = "did-not"
    SKIP = "skip"
    CHECK_AGAIN = "check-again"


@app.command("list")
def list_(
    status: Annotated[
        str | None, typer.Option(help="ACTIVE, PAUSED or BLOCKED; else any.", autocompletion=_STATUS)
    ] = None,
    limit: Limit = 1_000,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """List automations, and what stops those that stand still."""
    from kagzi.cli import automation_tables as tables
    from kagzi.cli import screen

    with reached(url, namespace) as client:
        found = list(client.automations.list(status=status.upper() if status else None, limit=limit))
    if json:
        screen.print_json([screen.fields(one) for one in found])
    else:
        tables.show_list(found)


@app.command()
def show(
    name: Name,
    state_of: Annotated[str, typer.Option(help="Also the state of this handler.")] = "",
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Show one automation: its handlers, what waits for whom, what stops it and when it moves next."""
    from kagzi.cli import automation_tables as tables
    from kagzi.cli import screen

    with reached(url, namespace) as client:
        found = client.automations.get(name, state_of=state_of)
        state = found.handlers[state_of].state if state_of in found.handlers else None
    if json:
        screen.print_json(screen.fields(found) | ({"state": state} if state_of else {}))
    else:
        tables.show(found)
        if state_of:
            screen.print_json(state)


@app.command("run-now")
def run_now(name: Name, url: Url = None, namespace: Namespace = None, json: Json = False) -> None:
    """Let all producers run now; refused while a handler runs."""
    with reached(url, namespace) as client:
        _say(client.automations.run_now(name), "Its producers are queued", json=json)


@app.command()
def pause(name: Name, url: Url = None, namespace: Namespace = None, json: Json = False) -> None:
    """Let the current run finish and start no other."""
    with reached(url, namespace) as client:
        _say(client.automations.pause(name), "It is paused", json=json)


@app.command()
def resume(name: Name, url: Url = None, namespace: Namespace = None, json: Json = False) -> None:
    """Go on with what came up meanwhile."""
    with reached(url, namespace) as client:
        _say(client.automations.resume(name), "It goes on", json=json)


@app.command()
def retry(name: Name, url: Url = None, namespace: Namespace = None, json: Json = False) -> None:
    """Unblock it and try the failed handler again."""
    with reached(url, namespace) as client:
        _say(client.automations.retry_blocked(name), "It tries again", json=json)


@app.command()
def resolve(
    name: Name,
    answer: Annotated[Answer, typer.Argument(help="What became of the mutation that nobody knows about.")],
    mutation: Annotated[str | None, typer.Option(help="Which one; else the one that blocks the automation.")] = None,
    result: Annotated[str | None, typer.Option(help="With happened: what it returned, as JSON.")] = None,
    reason: Annotated[str, typer.Option(help="Why, for people.")] = "",
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Say what became of a mutation: it happened, it did not, skip it, or check again."""
    from kagzi.cli import screen

    if result is not None and answer is not Answer.HAPPENED:
        end(f"--result goes with `happened`, and not with `{answer}`")
    with reached(url, namespace) as client:
        if mutation is None:
            blocked = client.automations.get(name).blocked
            if blocked is None or blocked.mutation is None:
                end(f"no mutation of {name} waits for an answer: `kagzi automations show {name}` says what goes on", 1)
            else:
                mutation = blocked.mutation.mutation_id
        said: Any = answer.value.replace("-", "_")
        assert mutation is not None
        told = client.automations.resolve_mutation(name, mutation, said, document("--result", result), reason=reason)
    if json:
        screen.print_json(screen.fields(told))
    else:
        typer.echo(f"{told.tool} of {told.handler} is {told.status}.")


@app.command()
def publish(
    name: Name,
    topic: Annotated[list[str], typer.Argument(help="One topic or several.")],
    id: Annotated[str, typer.Option(help="The event's id, unique within a topic.")],
    payload: Annotated[str | None, typer.Option(help="What it carries, as JSON.")] = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Publish an event from outside."""
    from kagzi.cli import screen

    with reached(url, namespace) as client:
        done = client.automations.publish(name, topic, id=id, payload=document("--payload", payload))
    if json:
        screen.print_json(screen.fields(done))
    else:
        acts = "" if done.status == "ACTIVE" else f" The automation is {done.status} and does not act on it now."
        typer.echo(f"Published: {done.created} new, {done.updated} replaced.{acts}")


@app.command()
def events(
    name: Name,
    topic: Annotated[str, typer.Option(help="Only of this topic.")] = "",
    id: Annotated[str, typer.Option(help="Only this event.")] = "",
    consumer: Annotated[str, typer.Option(help="Only for this consumer.")] = "",
    status: Annotated[str | None, typer.Option(help="PENDING, RESERVED, CONSUMED or SKIPPED.")] = None,
    payloads: Annotated[bool, typer.Option("--payloads", help="With what they carry.")] = False,
    limit: Limit = 50,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """List events, newest first, and where each is for whom."""
    from kagzi.cli import automation_tables as tables
    from kagzi.cli import screen

    with reached(url, namespace) as client:
        found = list(
            client.automations.events(
                name,
                topic=topic,
                id=id,
                consumer=consumer,
                status=status.upper() if status else None,
                payloads=payloads,
                limit=limit,
            )
        )
    if json:
        screen.print_json([screen.fields(one) | ({"payload": one.payload} if payloads else {}) for one in found])
    else:
        tables.show_events(found, payloads=payloads)


@app.command()
def inputs(
    name: Name,
    source: Annotated[str, typer.Option(help="Only from there.")] = "",
    type: Annotated[str, typer.Option(help="Only of this type.")] = "",
    status: Annotated[str | None, typer.Option(help="PENDING, DONE or SKIPPED.")] = None,
    limit: Limit = 50,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """List what came from outside, newest first."""
    from kagzi.cli import automation_tables as tables
    from kagzi.cli import screen

    with reached(url, namespace) as client:
        found = list(
            client.automations.inputs(
                name, source=source, type=type, status=status.upper() if status else None, limit=limit
            )
        )
    if json:
        screen.print_json([screen.fields(one) for one in found])
    else:
        tables.show_inputs(found)


@app.command("input")
def input_(
    name: Name, source: Source, type: Type, id: Id, url: Url = None, namespace: Namespace = None, json: Json = False
) -> None:
    """Show what became of one input: its events, the runs that took them, and what they changed."""
    from kagzi.cli import automation_tables as tables
    from kagzi.cli import screen

    with reached(url, namespace) as client:
        found = client.automations.input(name, source, type, id)
    if json:
        screen.print_json(screen.fields(found))
    else:
        tables.show_lineage(found)


@app.command()
def skip(
    name: Name, source: Source, type: Type, id: Id, url: Url = None, namespace: Namespace = None, json: Json = False
) -> None:
    """Skip what an input caused and nobody has taken yet."""
    from kagzi.cli import screen

    with reached(url, namespace) as client:
        done = client.automations.skip_input(name, source, type, id)
    if json:
        screen.print_json(screen.fields(done))
    else:
        left = f" {done.reserved} are in the hands of a run, and left to it." if done.reserved else ""
        typer.echo(f"Skipped {done.skipped} deliveries.{left}")


def _say(one: AutomationInfo, what: str, *, json: bool) -> None:
    from kagzi.cli import screen

    if json:
        screen.print_json(screen.fields(one))
        return
    running = f" {one.live_run.handler} runs." if one.live_run else ""
    blocked = f" It is blocked: {one.blocked.message}" if one.blocked else ""
    typer.echo(f"{one.name}: {what}.{running}{blocked}")
