"""`kagzi completion`: the script that lets a shell complete commands, options, and names that the server knows. It is
printed, never installed: what stands in somebody's profile is theirs to change.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kagzi.cli.remote import end
from kagzi.cli.suggestions import SHELLS, VARIABLE, words


def completion(
    shell: Annotated[str, typer.Argument(help="bash, zsh or fish.", autocompletion=words(*SHELLS))],
) -> None:
    """Print what a shell needs to complete: `source <(kagzi completion bash)`, `kagzi completion fish | source`."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # its public front

    if shell not in SHELLS:
        end(f"{shell!r} is no shell that is known here: write {', '.join(SHELLS)}")
    typer.echo(get_completion_script(prog_name="kagzi", complete_var=VARIABLE, shell=shell))
