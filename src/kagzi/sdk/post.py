"""A worker's post: where it works and on what, by keyword, environment or default. Everything is checked when it is
made, and an error says what to change. It opens no connection.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from typing import Any

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.automation_pb2 import AutomationDefinition
from kagzi.sdk import calls, duration, option
from kagzi.sdk.certificates import Tls, resolve_tls
from kagzi.sdk.codec import Chain, Codec
from kagzi.sdk.definition import Workflow
from kagzi.sdk.duration import Duration
from kagzi.sdk.errors import ConfigError
from kagzi.sdk.served import Deployable, Served

DEFAULT_QUEUE = "default"
_CONCURRENCY = 100
_RESIDENTS = 1_000
_MOST = 10_000
_DRAIN_TIMEOUT = "30s"


@dataclass(frozen=True, slots=True)
class Post:
    """What a worker was told, resolved and checked."""

    targets: Sequence[str]
    namespace: str
    queue: str
    concurrency: int
    # How many suspended runs stay in memory.
    residents: int
    workflows: Mapping[str, Workflow[Any, Any]]
    automations: Sequence[Deployable]
    # Every type it serves, by name: its workflows and the handlers of its automations.
    served: Mapping[str, Workflow[Any, Any] | Served]
    codecs: Chain
    drain_timeout: timedelta
    api_key: str | None
    tls: Tls
    labels: Mapping[str, str]

    @classmethod
    def resolve(
        cls,
        target: str | None,
        *,
        workflows: Iterable[Workflow[Any, Any]],
        automations: Iterable[object] = (),
        queue: str | None,
        concurrency: int | None,
        residents: int | None = None,
        namespace: str | None,
        api_key: str | None,
        tls: Tls,
        codecs: Sequence[Codec],
        drain_timeout: Duration | None,
        labels: Mapping[str, str] | None,
    ) -> Post:
        """What is not given comes from the environment, or is the default."""
        queue = resolve_queue(queue)
        key = calls.resolve_api_key(api_key)
        named = _by_name(workflows, queue)
        deployables = _deployables(automations, queue)
        return cls(
            targets=calls.resolve_target(target),
            namespace=calls.resolve_namespace(namespace, key),
            queue=queue,
            concurrency=_concurrency(concurrency),
            residents=_residents(residents),
            workflows=named,
            automations=deployables,
            served=_served(named, deployables),
            codecs=Chain(codecs),
            drain_timeout=_drain_timeout(drain_timeout),
            api_key=key,
            tls=resolve_tls(tls),
            labels=option.labels(labels),
        )

    def definitions(self) -> list[AutomationDefinition]:
        """The automations as they are deployed."""
        return [automation.definition(self.queue) for automation in self.automations]

    def registration(self, instance: str) -> pb.RegisterRequest:
        """How a worker makes itself known."""
        return pb.RegisterRequest(
            namespace=self.namespace,
            task_queue=self.queue,
            instance=instance,
            hostname=socket.gethostname()[:255],
            pid=os.getpid(),
            version=f"kagzi {version('kagzi')}",
            types=[
                pb.ServedType(name=each.name, version=each.version, definition_hash=each.definition_hash)
                for each in self.served.values()
            ],
            concurrency=self.concurrency,
            labels=self.labels,
        )


def resolve_queue(queue: str | None = None) -> str:
    """The queue to serve: the one given, of KAGZI_QUEUE, or "default"."""
    return option.name(queue, "queue") or os.environ.get("KAGZI_QUEUE") or DEFAULT_QUEUE


def _drain_timeout(given: Duration | None) -> timedelta:
    if given is not None:
        return duration.named(given, "drain_timeout")
    return duration.named(os.environ.get("KAGZI_DRAIN_TIMEOUT") or _DRAIN_TIMEOUT, "KAGZI_DRAIN_TIMEOUT")


def _concurrency(given: int | None) -> int:
    what = "concurrency (KAGZI_CONCURRENCY) is how many runs a worker holds at once"
    return _number(given, "KAGZI_CONCURRENCY", _CONCURRENCY, 1, what)


def _residents(given: int | None) -> int:
    what = "residents (KAGZI_RESIDENTS) is how many suspended runs a worker keeps in memory"
    return _number(given, "KAGZI_RESIDENTS", _RESIDENTS, 0, what)


def _number(given: int | None, variable: str, default: int, least: int, what: str) -> int:
    found: int | str = given if given is not None else os.environ.get(variable) or default
    number = int(found) if isinstance(found, str) and found.isascii() and found.isdecimal() else found
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= _MOST:
        raise ConfigError(f"{what}: a whole number from {least} to {_MOST}, and not {found!r}.")
    return number


def _by_name(workflows: Iterable[Workflow[Any, Any]], queue: str) -> dict[str, Workflow[Any, Any]]:
    named: dict[str, Workflow[Any, Any]] = {}
    if isinstance(workflows, Workflow):
        raise ConfigError(f"workflows is a list, also of one: Worker(workflows=[{workflows.name}]).")
    for each in workflows:
        if not isinstance(each, Workflow):
            raise ConfigError(
                f"{_shown(each)} is no workflow: put @workflow on the function and pass that, as "
                "Worker(workflows=[order])."
            )
        if named.setdefault(each.name, each) is not each:
            raise ConfigError(
                f"Two workflows are called {each.name!r} ({_place(named[each.name])} and {_place(each)}): rename one "
                "with @workflow(name=...)."
            )
        if each.queue is not None and each.queue != queue:
            raise ConfigError(
                f"Workflow {each.name!r} is declared for the queue {each.queue!r}, but this worker serves {queue!r}: "
                f"leave it to a worker with queue={each.queue!r}, or change its @workflow(queue=...)."
            )
    return named


def _deployables(automations: Iterable[object], queue: str) -> list[Deployable]:
    found: dict[str, Deployable] = {}
    for each in automations:
        if not isinstance(each, Deployable):
            raise ConfigError(
                f"{_shown(each)} is no automation: make one with Automation(name) and pass that, as "
                "Worker(automations=[inbox])."
            )
        if each.queue is not None and each.queue != queue:
            raise ConfigError(
                f"Automation {each.name!r} is declared for the queue {each.queue!r}, but this worker serves {queue!r}: "
                f"leave it to a worker with queue={each.queue!r}, or change its Automation(queue=...)."
            )
        if found.setdefault(each.name, each) is not each:
            raise ConfigError(f"Two automations are called {each.name!r}: rename one.")
    return [each.checked() for each in found.values()]


def _served(
    workflows: Mapping[str, Workflow[Any, Any]], automations: Iterable[Deployable]
) -> dict[str, Workflow[Any, Any] | Served]:
    served: dict[str, Workflow[Any, Any] | Served] = dict(workflows)
    for automation in automations:
        for handler in automation.served():
            if handler.name in served:
                raise ConfigError(f"A workflow and a handler are both called {handler.name!r}: rename one.")
            served[handler.name] = handler
    if not served:
        raise ConfigError(
            "A worker needs something to run: pass it, as Worker(workflows=[order]) or Worker(automations=[inbox])."
        )
    return served


def _shown(value: object) -> str:
    name = getattr(value, "__qualname__", None)
    return f"{name!r}" if isinstance(name, str) else f"{value!r:.80}"


def _place(workflow: Workflow[Any, Any]) -> str:
    return f"{workflow.function.__module__}.{workflow.function.__qualname__}"
