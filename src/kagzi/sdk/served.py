"""What a worker can run beside workflows: anything with a name among its types that makes the execution of a delivered
run. Automations bring such things to a worker that knows nothing else of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from kagzi.protocol.v1.automation_pb2 import AutomationDefinition
from kagzi.protocol.v1.worker_pb2 import Delivery
from kagzi.sdk.host import Host
from kagzi.sdk.lease import Run


class Served(Protocol):
    """One type that a worker serves."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def definition_hash(self) -> str: ...

    def execute(self, delivery: Delivery, host: Host, /) -> Run:
        """The execution of one delivered run."""
        ...


@runtime_checkable
class Deployable(Protocol):
    """A set of such types that is put in force before it runs."""

    name: str
    # The queue it is declared for; None: that of the worker it is given to.
    queue: str | None

    def checked(self) -> Deployable:
        """Itself, or ConfigError with what is wrong with it."""
        ...

    def definition(self, queue: str, /) -> AutomationDefinition:
        """What is put in force."""
        ...

    def served(self) -> Sequence[Served]:
        """What the worker runs for it."""
        ...
