"""Whether anybody traces, and the way to the spans if somebody does. Off unless the program has set up a tracer
provider of OpenTelemetry: otherwise nothing is imported, made or sent. The context travels as W3C writes it, in two
labels of the run, so that retries, forks and children stay in the trace; code never sees these labels.
"""

from __future__ import annotations

import re
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kagzi.protocol.v1.worker_pb2 import Delivery
    from kagzi.protocol.v1.workflow_pb2 import StartWorkflowRequest
    from kagzi.sdk.spans import Sitting

PARENT, STATE = "traceparent", "tracestate"
LABELS = frozenset({PARENT, STATE})
_FORM = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def active() -> bool:
    """Whether the program has set up a tracer provider; one that never imported OpenTelemetry has not."""
    trace = sys.modules.get("opentelemetry.trace")
    return trace is not None and not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def well_formed(parent: str) -> bool:
    """Whether a text is a traceparent of W3C."""
    return _FORM.fullmatch(parent) is not None


def starting(request: StartWorkflowRequest) -> AbstractContextManager[None]:
    """The span of a start; the run goes on in its trace."""
    if not active():
        return nullcontext()
    from kagzi.sdk import spans  # noqa: PLC0415 - OpenTelemetry is there only where somebody traces

    return spans.starting(request)


def sitting(namespace: str, delivery: Delivery) -> Sitting | None:
    """The span of what a worker does with a run that it was handed; None where nobody traces."""
    if not active():
        return None
    from kagzi.sdk import spans  # noqa: PLC0415 - OpenTelemetry is there only where somebody traces

    return spans.Sitting(namespace, delivery)
