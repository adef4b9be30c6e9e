"""The client: starts runs and finds them again. It connects when it is first used, keeps one connection to one server
at a time, and goes to the next of its list when that does not answer. Everything it does is safe to do again.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack, overload

from kagzi.protocol.v1 import workflow_pb2 as pb
from kagzi.sdk import listing, option, request, tracing
from kagzi.sdk.automations import Automations
from kagzi.sdk.certificates import Tls
from kagzi.sdk.codec import Codec
from kagzi.sdk.definition import Workflow
from kagzi.sdk.descriptions import RunInfo, run_info
from kagzi.sdk.duration import Duration
from kagzi.sdk.handle import Handle
from kagzi.sdk.listing import RunFilter
from kagzi.sdk.reach import Reach
from kagzi.sdk.request import StartOptions
from kagzi.sdk.schedules import Schedules

I = TypeVar("I")  # noqa: E741 - a workflow's input
O = TypeVar("O")  # noqa: E741 - a workflow's output


class ClientOptions(TypedDict, total=False):
    """The keyword arguments of a client."""

    namespace: str | None
    api_key: str | None
    # What happens to payloads on their way: compression, encryption.
    codecs: Sequence[Codec]
    # True: trust the system's authorities; `Certificates` name files; or credentials of gRPC.
    tls: Tls
    # How long a request is tried again while no server answers.
    patience: Duration


class Client:
    """Starts runs and finds them again: `async with Client("localhost:50051") as client: ...`.

    What is not given comes from KAGZI_URL (several servers separated by commas), KAGZI_NAMESPACE, KAGZI_API_KEY, which
    names its namespace too, and KAGZI_TLS, KAGZI_TLS_CA, KAGZI_TLS_CERT and KAGZI_TLS_KEY.
    `patience` is how long a request is tried again while no server answers.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        api_key: str | None = None,
        codecs: Sequence[Codec] = (),
        tls: Tls = None,
        patience: Duration = "30s",
    ) -> None:
        self._reach = Reach(url, namespace, api_key, codecs=codecs, tls=tls, patience=patience)
        self.automations = Automations(self._reach)
        self.schedules = Schedules(self._reach)

    @property
    def namespace(self) -> str:
        """The namespace it works in."""
        return self._reach.namespace

    def __repr__(self) -> str:
        return f"<Client of {', '.join(self._reach.servers.targets)}, namespace {self.namespace!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection; runs go on."""
        await self._reach.close()

    @overload
    async def start(
        self, workflow: Workflow[None, O], input: None = None, **options: Unpack[StartOptions]
    ) -> Handle[O]: ...

    @overload
    async def start(self, workflow: Workflow[I, O], input: I, **options: Unpack[StartOptions]) -> Handle[O]: ...

    @overload
    async def start(self, workflow: str, input: Any = None, **options: Unpack[StartOptions]) -> Handle[Any]: ...

    async def start(self, workflow: Any, input: Any = None, **options: Unpack[StartOptions]) -> Handle[Any]:
        """Starts a run of a workflow, given as the decorated function or by name.

        Options: `id`, `queue`, `delay`, `at`, `priority`, `labels`, `timeout`, `retry`, `on_conflict` ("return",
        "reject", "replace"), `dedupe` ("active", "forever"), `version`, `detached`, `run_id`.
        """
        made = request.start(self.namespace, self._reach.codecs, workflow, input, **options)
        with tracing.starting(made):
            started = await self._reach.starts.start(made)
        return Handle(self._reach, started.run_id, workflow, already_exists=started.already_exists)

    @overload
    async def execute(self, workflow: Workflow[None, O], input: None = None, **options: Unpack[StartOptions]) -> O: ...

    @overload
    async def execute(self, workflow: Workflow[I, O], input: I, **options: Unpack[StartOptions]) -> O: ...

    @overload
    async def execute(self, workflow: str, input: Any = None, **options: Unpack[StartOptions]) -> Any: ...

    async def execute(self, workflow: Any, input: Any = None, **options: Unpack[StartOptions]) -> Any:
        """Starts a run, as `start` does, and waits for its result. Raises RunFailed or RunCancelled."""
        handle = await self.start(workflow, input, **options)
        return await handle.result()

    @overload
    def handle(self, run_id: str, workflow: Workflow[Any, O]) -> Handle[O]: ...

    @overload
    def handle(self, run_id: str, workflow: str | None = None) -> Handle[Any]: ...

    def handle(self, run_id: str, workflow: Any = None) -> Handle[Any]:
        """The handle of a run; nothing is asked of the server. With its workflow, results come back as declared."""
        return Handle(self._reach, run_id, workflow)

    @overload
    async def find(self, id: str, workflow: Workflow[Any, O]) -> Handle[O]: ...

    @overload
    async def find(self, id: str, workflow: None = None) -> Handle[Any]: ...

    async def find(self, id: str, workflow: Any = None) -> Handle[Any]:
        """The active run with the `id` its caller gave it, else the newest that had it. NotFound when there is none."""
        asked = pb.GetWorkflowByExternalIdRequest(namespace=self.namespace, external_id=option.required(id, "id"))
        found = await self._reach.look(lambda server: server.workflows.GetWorkflowByExternalId, asked)
        return Handle(self._reach, found.run.run_id, workflow or found.run.workflow_type)

    async def runs(self, *, limit: int | None = None, **which: Unpack[RunFilter]) -> AsyncIterator[RunInfo]:
        """Runs, newest first, without inputs and outputs; at most `limit`.

        Filters: `status` (one or several), `type`, `queue`, `labels`, `since`, `until`, `parent`.
        """
        asked = listing.runs(self.namespace, **which)
        left = sys.maxsize if limit is None else option.count(limit, "limit")
        while left > 0:
            asked.page_size = min(left, asked.page_size)
            page = await self._reach.look(lambda server: server.workflows.ListWorkflows, asked)
            for run in page.runs:
                decode = partial(self._reach.decode, annotation=None, workflow_type=run.workflow_type)
                yield run_info(run, partial(decode, role="input"), partial(decode, role="output"))
            if not page.next_page_token:
                return
            asked.page_token = page.next_page_token
            left -= len(page.runs)
