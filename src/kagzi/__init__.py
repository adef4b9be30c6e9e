"""Durable workflows for Python on PostgreSQL: ordinary async functions that survive crashes, restarts and deploys."""

import importlib
from typing import Any

from kagzi import errors
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
    "step",
    "workflow",
]


def __getattr__(name: str) -> Any:
    # `kagzi.testing` and `kagzi.sql` are there without being asked for, and cost nothing until they are.
    if name in ("sql", "testing"):
        return importlib.import_module(f"kagzi.{name}")
    raise AttributeError(f"module 'kagzi' has no attribute {name!r}")
