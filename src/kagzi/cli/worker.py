"""`kagzi worker`: runs the workflows of a module until SIGTERM or Ctrl-C, then drains. With `--watch` a changed file
starts a new worker with the new code, while the old one drains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kagzi.cli.problems import FAILED, USAGE

if TYPE_CHECKING:
    from kagzi.sdk.definition import Workflow


def worker(
    module: Annotated[str, typer.Argument(help="Where the workflows are: shop.orders, or shop/orders.py.")],
    queue: Annotated[str | None, typer.Option(help='The queue to serve (KAGZI_QUEUE); else "default".')] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="How many runs at a time (KAGZI_CONCURRENCY); else 100.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="The servers (KAGZI_URL), as a:50051,b:50051; else the local one.")
    ] = None,
    namespace: Annotated[str | None, typer.Option(help='The namespace (KAGZI_NAMESPACE); else "default".')] = None,
    drain_timeout: Annotated[str | None, typer.Option(help="How long runs may go on after SIGTERM; else 30s.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Start anew whenever a file of the module changes.")] = False,
) -> None:
    """Run the workflows of MODULE."""
    from kagzi.sdk.errors import ConfigError, ServerError

    options = {
        "--queue": queue,
        "--concurrency": concurrency,
        "--url": url,
        "--namespace": namespace,
        "--drain-timeout": drain_timeout,
    }
    try:
        if watch:
            _watch(module, options)
        else:
            _work(module, queue, concurrency, url, namespace, drain_timeout)
    except ConfigError as error:
        _end(str(error), USAGE)
    except ServerError as error:
        _end(str(error), FAILED)


def _watch(module: str, options: dict[str, Any]) -> None:
    import sys

    from kagzi.cli.reloader import supervise
    from kagzi.sdk.collect import source_of

    given = [part for name, value in options.items() if value is not None for part in (name, str(value))]
    command = [sys.executable, "-c", "from kagzi.cli import main; main()", "worker", module, *given]
    raise typer.Exit(supervise(command, source_of(module)))


def _work(
    module: str,
    queue: str | None,
    concurrency: int | None,
    url: str | None,
    namespace: str | None,
    drain_timeout: str | None,
) -> None:
    import logging

    from kagzi.cli.process import run
    from kagzi.sdk.collect import collect
    from kagzi.sdk.post import resolve_queue
    from kagzi.sdk.worker import Worker

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S")
    workflows = _of_queue(collect(module), module, resolve_queue(queue))
    made = Worker(
        url,
        workflows=workflows,
        queue=queue,
        concurrency=concurrency,
        namespace=namespace,
        drain_timeout=drain_timeout,
    )
    names = ", ".join(sorted(workflow.name for workflow in workflows))
    typer.echo(f"Runs {names} of queue {resolve_queue(queue)}. Ctrl-C stops it.")
    run(made.run())


def _of_queue(workflows: list[Workflow[Any, Any]], module: str, queue: str) -> list[Workflow[Any, Any]]:
    """Those that the queue's workers run; a module may hold workflows of several."""
    from kagzi.sdk.errors import ConfigError

    served = [workflow for workflow in workflows if workflow.queue in (None, queue)]
    others = sorted({workflow.queue for workflow in workflows if workflow.queue not in (None, queue)} - {None}, key=str)
    named = ", ".join(map(str, others))
    if not served:
        raise ConfigError(
            f"{module} has no workflow for the queue {queue!r}, only for {named}: say --queue {others[0]}."
        )
    if others:
        typer.echo(f"Leaves the workflows for {named} to other workers.", err=True)
    return served


def _end(message: str, code: int) -> None:
    typer.secho(f"error: {message}", fg="red", err=True)
    raise typer.Exit(code)
