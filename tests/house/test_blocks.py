"""Every block of the documents is run by somebody, or says that it is not. tests/docs/test_blocks.py runs the programs,
who is named here runs other code, `console` marks what needs more than tests have, and without a mark there are
settings alone.
"""

from __future__ import annotations

from itertools import chain

from kagzi.server.settings import Settings
from tests.docs.blocks import ROOT, Block, blocks, documents

# Which test runs the blocks of a document that are no whole programs.
RUN = {
    ("README.md", "python"): "tests/docs/test_readme.py",
    ("README.md", "python fragment"): "tests/docs/test_readme.py",
    ("docs/quickstart.md", "python fragment"): "tests/docs/test_quickstart.py",
    ("docs/quickstart.md", "sh"): "tests/docs/test_quickstart.py",
    ("docs/http.md", "sh"): "tests/dashboard/test_docs.py",
    ("docs/http.md", "json"): "tests/dashboard/test_docs.py",
    ("docs/security.md", "sh"): "tests/docs/test_security.py",
    ("docs/security.md", "sql"): "tests/docs/test_security.py",
    ("docs/deploy.md", "sh"): "tests/docs/test_deploy.py",
}


def every() -> list[Block]:
    return list(chain.from_iterable(blocks(path, None) for path in documents()))


def kind(block: Block) -> tuple[str, str]:
    return str(block.path.relative_to(ROOT)), f"{block.language} {block.mark}".strip()


def test_every_block_is_run_by_somebody() -> None:
    """A new one: mark it ```console if no test can run it, else write the test and name it above."""
    unknown = [
        block.name for block in every() if kind(block) not in RUN and kind(block)[1] not in ("python", "console", "")
    ]
    assert unknown == []


def test_who_runs_blocks_exists_and_has_some_to_run() -> None:
    assert all((ROOT / file).is_file() for file in RUN.values())
    assert set(RUN) <= {kind(block) for block in every()}


def test_without_a_mark_there_are_settings_alone() -> None:
    """Write ```console, or ```sh with a test that runs it, before commands."""
    known = {f"KAGZI_{name.upper()}" for name in Settings.model_fields}
    lines = [(block.name, line) for block in every() if kind(block)[1] == "" for line in block.code.splitlines()]
    assert [(name, line) for name, line in lines if line and line.partition("=")[0] not in known] == []
