"""A terminal for the scripts of the documents: a folder, our commands and PostgreSQL's on the path, and variables."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kagzi.embedded import account, binaries


def made(command: str) -> str:
    """`make TARGET` with the environment of this process in place of the one that make would set up."""
    make, target = command.split()
    here = Path(sys.prefix)
    makefile = Path(__file__).resolve().parents[2] / "Makefile"
    return shlex.join([make, "-s", "-f", str(makefile), f"VENV={here}", "-o", f"{here}/.ready", target])


class Terminal:
    """Runs what a reader would type in a folder."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KAGZI_")}
        # PostgreSQL's tools first: those of a system may be older than the server.
        tools = binaries.find(18, account.choose(folder / "postgres"))
        path = f"{Path(sys.executable).parent}:{tools}:{kept['PATH']}"
        self.variables = {**kept, "PATH": path, "NO_COLOR": "1", **variables}

    def type(self, script: str) -> str:
        """What a script says on stdout; it must end well."""
        done = subprocess.run(
            ["bash", "-euc", script],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def running(self, command: str, until: str) -> Iterator[str]:
        """A command that stays, and what it had said when it said `until`."""
        process = subprocess.Popen(
            ["bash", "-euc", f"exec {command}"],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        said = ""
        try:
            while until not in said:
                line = process.stdout.readline()
                assert line, f"{command} ended and had said: {said}"
                said += line
            yield said
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
