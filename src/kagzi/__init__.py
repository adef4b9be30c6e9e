"""Durable workflows for Python on PostgreSQL: ordinary async functions that survive crashes, restarts and deploys.

Names are loaded when they are first used, so that importing the package costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kagzi import errors, sql
    from kagzi.sdk.children import ChildHandle
    from kagzi.sdk.client import Client
    from kagzi.sdk.codec import Compression
    from kagzi.sdk.context import Context
    from kagzi.sdk.current import idempotency_key
    from kagzi.sdk.definition import Step, Workflow, step, workflow
    from kagzi.sdk.encryption import Encryption
    from kagzi.sdk.errors import (
        Absent,
        Applied,
        KagziError,
        NonRetryable,
        NotApplied,
        RetryAfter,
        RunCancelled,
        RunFailed,
        StepFailed,
        Unclear,
    )
    from kagzi.sdk.handle import Handle
    from kagzi.sdk.retry import Retry
    from kagzi.sdk.sync import SyncClient
    from kagzi.sdk.worker import Worker

__all__ = [
    "Absent",
    "Applied",
    "ChildHandle",
    "Client",
    "Compression",
    "Context",
    "Encryption",
    "Handle",
    "KagziError",
    "NonRetryable",
    "NotApplied",
    "Retry",
    "RetryAfter",
    "RunCancelled",
    "RunFailed",
    "Step",
    "StepFailed",
    "SyncClient",
    "Unclear",
    "Worker",
    "Workflow",
    "errors",
    "idempotency_key",
    "sql",
    "step",
    "workflow",
]

_HOMES = {
    "ChildHandle": "sdk.children",
    "Client": "sdk.client",
    "Compression": "sdk.codec",
    "Context": "sdk.context",
    "Encryption": "sdk.encryption",
    "Handle": "sdk.handle",
    "Retry": "sdk.retry",
    "Step": "sdk.definition",
    "SyncClient": "sdk.sync",
    "Worker": "sdk.worker",
    "Workflow": "sdk.definition",
    "idempotency_key": "sdk.current",
    "step": "sdk.definition",
    "workflow": "sdk.definition",
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "sql", "testing"):
        return importlib.import_module(f"kagzi.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'kagzi' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"kagzi.{_HOMES.get(name, 'sdk.errors')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
