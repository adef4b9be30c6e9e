"""What `kagzi completion` prints is understood by the shells it is for. Where one is not installed, its question is
asked in its place.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.cli.test_cli import KAGZI, environment

_ZSH = """
compdef() { print -r -- "compdef $*" }
_arguments() { print -r -- "$@" }
eval "$(kagzi completion zsh)"
words=(kagzi sched); CURRENT=2; _kagzi_completion
words=(kagzi runs list --status f); CURRENT=5; _kagzi_completion
"""
_FISH = """
kagzi completion fish | source
complete -C "kagzi sched"
complete -C "kagzi runs list --status f"
"""


def said(*command: str, **variables: str) -> str:
    path = f"{Path(KAGZI).parent}:{os.environ['PATH']}"
    shown = environment(PATH=path, **variables)
    return subprocess.run(command, env=shown, capture_output=True, text=True, timeout=60, check=True).stdout


def test_zsh_completes_commands_and_values() -> None:
    if shutil.which("zsh"):
        first, *offered = said("zsh", "-f", "-c", _ZSH).splitlines()
        assert first == "compdef _kagzi_completion kagzi"
    else:
        assert said(KAGZI, "completion", "zsh").startswith("#compdef kagzi\n")
        asked = {"_KAGZI_COMPLETE": "complete_zsh"}
        typed = ("kagzi sched", "kagzi runs list --status f")
        offered = [said(KAGZI, **asked, _TYPER_COMPLETE_ARGS=words) for words in typed]
    assert '"schedules":"Look after schedules."' in offered[0]
    assert '"failed"' in offered[1]


def test_fish_completes_commands_and_values() -> None:
    if shutil.which("fish"):
        offered = said("fish", "--no-config", "-c", _FISH).splitlines()
    else:
        assert said(KAGZI, "completion", "fish").startswith("complete --command kagzi ")
        asked = {"_KAGZI_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
        typed = ("kagzi sched", "kagzi runs list --status f")
        offered = [said(KAGZI, **asked, _TYPER_COMPLETE_ARGS=words).strip() for words in typed]
    assert offered == ["schedules\tLook after schedules.", "failed"]
