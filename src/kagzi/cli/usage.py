"""What a person is told who typed a command wrongly: one line on stderr that says what is wrong and where to look, and
the exit code for wrong usage. Who types a group of commands alone is shown what there is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer

from kagzi.cli.problems import USAGE

# The error that all of the parser's derive from. It has no public name of its own.
_Mistake: Any = next(each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException")


def run(command: Callable[..., Any], name: str) -> None:
    """Runs the command that the process was called with, and ends the process."""
    try:
        code = command(prog_name=name, standalone_mode=False)
    except typer.Abort:
        typer.secho("error: given up", fg="red", err=True)
        sys.exit(1)
    except _Mistake as mistake:
        if type(mistake).__name__ == "NoArgsIsHelpError":
            typer.echo(mistake.format_message(), err=True)
        else:
            typer.secho(f"error: {_line(mistake, name)}", fg="red", err=True)
        sys.exit(USAGE)
    # A command that ends well answers nothing, and one that ends otherwise its code.
    sys.exit(code if isinstance(code, int) else 0)


def _line(mistake: Any, name: str) -> str:
    said = " ".join(mistake.format_message().split()).rstrip(".")
    said = said[:1].lower() + said[1:]
    ctx = getattr(mistake, "ctx", None)
    path = name if ctx is None else ctx.command_path
    if ctx is not None and said.startswith("missing argument"):
        pieces = " ".join(ctx.command.collect_usage_pieces(ctx))
        said = f"{said}: write `{path} {pieces}`"
    return f"{said}{'' if said.endswith('?') else ';'} `{path} -h` tells more"
