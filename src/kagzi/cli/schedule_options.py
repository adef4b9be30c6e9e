"""The options of commands that create and change schedules, and what they mean for the client."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kagzi.cli.remote import moment, pairs
from kagzi.cli.suggestions import SCHEDULES, words

Id = Annotated[str, typer.Argument(help="The schedule's id.", autocompletion=SCHEDULES)]
Cron = Annotated[str | None, typer.Option(help='When, as "0 2 * * *"; 6 fields with seconds; or "@daily".')]
Every = Annotated[str | None, typer.Option(help="Every so often, as 15m.")]
Text = Annotated[str | None, typer.Option(help='When, in words: "every friday at 5pm".')]
Timezone = Annotated[str | None, typer.Option(help="The IANA time zone, as Europe/Berlin; else the server's.")]
StartAt = Annotated[str | None, typer.Option(help="Fires no sooner, as 2026-06-01T12:00Z.")]
EndAt = Annotated[str | None, typer.Option(help="Fires before that alone.")]
Jitter = Annotated[str | None, typer.Option(help="Each run starts up to this much later.")]
MaxRuns = Annotated[int | None, typer.Option(help="Runs in all; 0: any number.")]
Overlap = Annotated[
    str | None,
    typer.Option(
        help="While the run before has not ended: allow, skip, queue_one, cancel_previous.",
        autocompletion=words("allow", "skip", "queue_one", "cancel_previous"),
    ),
]
MaxCatchup = Annotated[int | None, typer.Option(help="How many missed slots are made up for; else 100.")]
Input = Annotated[str | None, typer.Option("--input", help="The input of its runs, as JSON.")]
Queue = Annotated[str | None, typer.Option(help='The queue of its runs; else "default".')]
Version = Annotated[str | None, typer.Option(help="Only workers with this version get its runs.")]
Priority = Annotated[int | None, typer.Option(help="0 to 4, higher first; else 2.")]
Labels = Annotated[list[str] | None, typer.Option("--label", help="A label of its runs, as customer=7; repeat it.")]
Timeout = Annotated[str | None, typer.Option(help="Time limit of each run.")]
Attempts = Annotated[int | None, typer.Option(help="How often a whole run is tried in all.")]


def options(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a command as the client takes them, without those that were not given."""
    from kagzi.sdk.retry import Retry

    names = ("cron", "every", "text", "timezone", "jitter", "max_runs", "overlap", "max_catchup")
    made = {name: given[name] for name in (*names, "queue", "version", "priority", "timeout")}
    made |= {name: moment(f"--{name.replace('_', '-')}", given[name]) for name in ("start_at", "end_at")}
    made["labels"] = pairs("--label", given["label"])
    made["retry"] = None if given["attempts"] is None else Retry(max_attempts=given["attempts"])
    return {name: value for name, value in made.items() if value is not None}
