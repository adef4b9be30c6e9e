"""Environments of peers: a virtual environment with a peer's packages, and programs from npm, in the user's cache.
Made on first use and kept. What cannot be made is an error with a reason, never a peer that is silently left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
_FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kagzi-bench"
_PATIENCE = 300.0


class Unavailable(Exception):
    """A peer cannot be measured here; the message says why."""


def python(name: str, *packages: str) -> Path:
    """The interpreter of an environment that has these packages."""
    folder = _FOLDER / name
    found = folder / "bin" / "python"
    made = folder / "made"
    wanted = "\n".join(packages)
    if not made.exists() or made.read_text() != wanted:
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        _run(str(found), "-m", "pip", "install", "--quiet", *packages)
        made.write_text(wanted)
    return found


def npm(name: str, package: str, program: str) -> Path:
    """A program of an npm package, or of one that it brought for this machine."""
    folder = _FOLDER / name
    if not (found := list(folder.glob(f"node_modules/**/bin/{program}"))):
        folder.mkdir(parents=True, exist_ok=True)
        _run("npm", "install", "--no-fund", "--no-audit", "--silent", "--prefix", str(folder), package)
        found = list(folder.glob(f"node_modules/**/bin/{program}"))
    if not found:
        raise Unavailable(f"{package} brought no program {program} for this machine")
    return found[0]


def version(interpreter: Path, package: str) -> str:
    """The version of a package that an environment has."""
    program = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([interpreter, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{Path(command[0]).name} could not be run: {error}") from error
    if done.returncode:
        told = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no reason was given"]
        raise Unavailable(f"`{Path(command[0]).name} {' '.join(command[1:4])} …` failed: {told[0]}")
