"""What a worker holds: the delivered runs, from the first chunk of each until its last operation is answered. It is what an
execution sees of its worker, and what the stream and the heartbeats speak to; a run whose lease is lost is dropped and
writes nothing more. Everything here happens on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, TypeAlias

import uuid_utils
from google.protobuf.message import Message

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.sdk.codec import Chain
from kagzi.sdk.definition import Workflow
from kagzi.sdk.lease import Leases, Run
from kagzi.sdk.outbox import Answered, Outbox

log = logging.getLogger("kagzi.worker")

Execute: TypeAlias = "Callable[[pb.Delivery, Workflow[Any, Any], Holdings], Run]"


@dataclass(frozen=True, slots=True)
class Post:
    """What a worker does, and where."""

    namespace: str
    queue: str
    concurrency: int
    workflows: Mapping[str, Workflow[Any, Any]]
    labels: Mapping[str, str] = field(default_factory=dict)
    # Made anew for each start, so that two workers of one process are two.
    instance: str = field(default_factory=lambda: str(uuid_utils.uuid4()))

    def registration(self) -> pb.RegisterRequest:
        """How the worker makes itself known."""
        return pb.RegisterRequest(
            namespace=self.namespace,
            task_queue=self.queue,
            instance=self.instance,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            version=f"kagzi {version('kagzi')}",
            types=[
                pb.ServedType(name=each.name, version=each.version, definition_hash=each.definition_hash)
                for each in self.workflows.values()
            ],
            concurrency=self.concurrency,
            labels=self.labels,
        )


class Holdings:
    """The runs in a worker's hands. `changed` is called when one is there no more, `drain` when a server asks for it,
    `again` when the worker has to say hello anew.
    """

    def __init__(
        self,
        post: Post,
        execute: Execute,
        *,
        codecs: Chain,
        executor: Executor,
        wake: Callable[[], None],
        beat: Callable[[pb.RegisterResponse | None], None],
        again: Callable[[], None],
        drain: Callable[[], None],
    ) -> None:
        self.namespace = post.namespace
        self.codecs = codecs
        self.executor = executor
        self.leases = Leases()
        self.outbox = Outbox(wake=wake, settled=self._free, fallen=self._fall)
        self.open = True
        self.worker_id = ""
        self._post = post
        self._execute = execute
        self._wake = wake
        self._beat = beat
        self._again = again
        self._drain = drain
        self._loop = asyncio.get_running_loop()
        self.empty = asyncio.Event()
        self.empty.set()

    # What an execution sees.

    def send(self, run: Run, name: str, body: Message, answered: Answered | None = None) -> None:
        """Queues one operation for the next frame."""
        lease = self.leases.by_token.get(run.token)
        if lease is not None and not lease.lost:
            self.outbox.send(lease, name, body, answered)
