"""Durable workflows for Python on PostgreSQL: ordinary async functions that survive crashes, restarts and deploys.

Names are loaded when they are first used, so that importing the package costs nothing.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

# By default gRPC begins threads in every forked child, also in one that is about to become another program. They meet
# the descriptors it closes, and abort it: half of the programs that a busy process starts under another account died
# so. Whoever forks and talks on in the child sets this to 1. It is read when gRPC is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

if TYPE_CHECKING:
    from kagzi import errors, sql
    from kagzi.automations.automation import Automation
    from kagzi.automations.contexts import MutateContext, NextContext, PrepareContext, ProducerContext
    from kagzi.automations.events import Event
    from kagzi.automations.mutation import mutation
    from kagzi.automations.outcome import Outcome
    from kagzi.automations.prepared import Prepared
    from kagzi.sdk.certificates import Certificates
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
        NeedsAttention,
        NonRetryable,
        NotApplied,
        RetryAfter,
        RunCancelled,
        RunFailed,
        StepFailed,
        Transient,
        Unclear,
    )
    from kagzi.sdk.handle import Handle
    from kagzi.sdk.inputs import Input
    from kagzi.sdk.retry import Retry
    from kagzi.sdk.sync import SyncClient
    from kagzi.sdk.worker import Worker

__all__ = [
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

_HOMES = {
    "Automation": "automations.automation",
    "Certificates": "sdk.certificates",
    "ChildHandle": "sdk.children",
    "Client": "sdk.client",
    "Compression": "sdk.codec",
    "Context": "sdk.context",
    "Encryption": "sdk.encryption",
    "Event": "automations.events",
    "Handle": "sdk.handle",
    "Input": "sdk.inputs",
    "MutateContext": "automations.contexts",
    "NextContext": "automations.contexts",
    "Outcome": "automations.outcome",
    "PrepareContext": "automations.contexts",
    "Prepared": "automations.prepared",
    "ProducerContext": "automations.contexts",
    "Retry": "sdk.retry",
    "Step": "sdk.definition",
    "SyncClient": "sdk.sync",
    "Worker": "sdk.worker",
    "Workflow": "sdk.definition",
    "idempotency_key": "sdk.current",
    "mutation": "automations.mutation",
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
