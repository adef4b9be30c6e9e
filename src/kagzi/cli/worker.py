"""`kagzi worker`: runs the workflows and automations of a module until SIGTERM or Ctrl-C, then drains. With `--watch` a
changed file starts a new worker with the new code, while the old one drains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from kagzi.cli.remote import answered

if TYPE_CHECKING:
    from kagzi.automations.automation import Automation
    from kagzi.sdk.definition import Workflow

    Served: TypeAlias = Workflow[Any, Any] | Automation


def worker(
    module: Annotated[str, typer.Argument(help="Where they are declared: shop.orders, or shop/orders.py.")],
    queue: Annotated[str | None, typer.Option(help='The queue to serve (KAGZI_QUEUE); else "default".')] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="How many runs at a time (KAGZI_CONCURRENCY); else 100.")
    ] = None,
    residents: Annotated[
        int | None, typer.Option(help="How many waiting runs stay in memory (KAGZI_RESIDENTS); else 1000.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="The servers (KAGZI_URL), as a:50051,b:50051; else the local one.")
    ] = None,
    namespace: Annotated[str | None, typer.Option(help='The namespace (KAGZI_NAMESPACE); else "default".')] = None,
    drain_timeout: Annotated[str | None, typer.Option(help="How long runs may go on after SIGTERM; else 30s.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Start anew whenever a file of the module changes.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Say as one line of JSON what it runs.")] = False,
) -> None:
    """Run the workflows and automations of MODULE."""
    options = {
        "--queue": queue,
        "--concurrency": concurrency,
        "--residents": residents,
        "--url": url,
        "--namespace": namespace,
        "--drain-timeout": drain_timeout,
    }
    with answered():
        if watch:
            _watch(module, options, json=json)
        else:
            _work(module, queue, concurrency, residents, url, namespace, drain_timeout, json=json)


def _watch(module: str, options: dict[str, Any], *, json: bool) -> None:
    import sys

    from kagzi.cli.reloader import supervise
    from kagzi.sdk.collect import source_of

    given = ["--json"] if json else []
    given += [part for name, value in options.items() if value is not None for part in (name, str(value))]
    command = [sys.executable, "-c", "from kagzi.cli import main; main()", "worker", module, *given]
    raise typer.Exit(supervise(command, source_of(module)))


def _work(
    module: str,
    queue: str | None,
    concurrency: int | None,
    residents: int | None,
    url: str | None,
    namespace: str | None,
    drain_timeout: str | None,
    *,
    json: bool,
) -> None:
    import json as jsonlib
    import logging
    import os

    from kagzi.automations.automation import Automation
    from kagzi.cli.process import run, stays
    from kagzi.sdk.collect import collect, instances
    from kagzi.sdk.definition import Workflow
    from kagzi.sdk.post import resolve_queue
    from kagzi.sdk.worker import Worker

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S")
    automations = instances(module, Automation)
    declared = instances(module, Workflow) if automations else collect(module)
    served = _of_queue([*declared, *automations], module, resolve_queue(queue))
    made = Worker(
        url,
        workflows=[each for each in served if isinstance(each, Workflow)],
        automations=[each for each in served if isinstance(each, Automation)],
        queue=queue,
        concurrency=concurrency,
        residents=residents,
        namespace=namespace,
        drain_timeout=drain_timeout,
    )
    names = sorted(each.name for each in served)
    if json:
        typer.echo(jsonlib.dumps({"runs": names, "queue": resolve_queue(queue), "pid": os.getpid()}))
    else:
        typer.echo(f"Runs {', '.join(names)} of queue {resolve_queue(queue)}. Ctrl-C stops it.")
    stays()
    run(made.run())


def _of_queue(declared: list[Served], module: str, queue: str) -> list[Served]:
    """Those that the queue's workers run; a module may hold workflows of several."""
    from kagzi.sdk.errors import ConfigError

    served = [each for each in declared if each.queue in (None, queue)]
    others = sorted({each.queue for each in declared if each.queue not in (None, queue)} - {None}, key=str)
    named = ", ".join(map(str, others))
    if not served:
        raise ConfigError(
            f"The module {module} has no workflow for the queue {queue!r}, only for {named}: say --queue {others[0]}."
        )
    if others:
        typer.echo(f"Leaves the workflows for {named} to other workers.", err=True)
    return served
