"""Spans of OpenTelemetry, from whoever starts a run through the run to its steps. A run may sleep for days and go on
elsewhere, so that a span is one sitting of it: from when a worker is handed the run until it gives it back. Only what
really runs has a span; a replay has none. No payload and no message of an error is ever in one.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kagzi.sdk.tracing import LABELS

if TYPE_CHECKING:
    from kagzi.protocol.v1.worker_pb2 import Delivery
    from kagzi.protocol.v1.workflow_pb2 import StartWorkflowRequest
    from kagzi.sdk.bodies import Ended
    from kagzi.sdk.pending import Pending

# As many labels as a run may have, and as long as one may be.
_MOST_LABELS = 32
_MOST_BYTES = 255


@contextmanager
def starting(request: StartWorkflowRequest) -> Iterator[None]:
    """The span of a start; the run goes on in its trace."""
    attributes = _of(request.namespace, request.workflow_type, request.run_id)
    name = f"start {request.workflow_type}"
    with _tracer().start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes) as span:
        _mark(request.labels, trace.set_span_in_context(span))
        yield


class Sitting:
    """What a worker does with a run from when it is handed over until it is given back."""

    __slots__ = ("_context", "_span")

    def __init__(self, namespace: str, delivery: Delivery) -> None:
        self._span = _tracer().start_span(
            f"run {delivery.workflow_type}",
            context=_parent(delivery.labels),
            kind=SpanKind.CONSUMER,
            attributes=_of(namespace, delivery.workflow_type, delivery.run_id),
        )
        self._context = trace.set_span_in_context(self._span)

    def end(self, how: str) -> None:
        """The run is given back, or has ended; `how` is the operation that says so."""
        self._span.set_attribute("kagzi.gave", how)
        if how == "fail":
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()

    def mark(self, child: StartWorkflowRequest) -> None:
        """A child goes on in this trace."""
        _mark(child.labels, self._context)

    def body(self, pending: Pending, context: contextvars.Context | None, ended: Ended) -> Body:
        """The span of a step's body."""
        span = _tracer().start_span(
            f"step {pending.step_id}",
            context=self._context,
            attributes={"kagzi.step": pending.step_id, "kagzi.attempt": pending.attempt_number},
        )
        return Body(span, context, ended)


class Body:
    """The span of a step's body, and what the body runs in: what it does outside is in the trace too."""

    __slots__ = ("_ended", "_span", "context")

    def __init__(self, span: Span, context: contextvars.Context | None, ended: Ended) -> None:
        self._span = span
        self._ended = ended
        self.context = contextvars.copy_context() if context is None else context.copy()
        self.context.run(contexts.attach, trace.set_span_in_context(span))

    def ended(self, result: Any, error: BaseException | None, elapsed_us: int) -> None:
        """The body has ended."""
        if error is not None:
            # Its message may hold what payloads hold; its type does not.
            self._span.set_attribute("exception.type", type(error).__name__)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()
        self._ended(result, error, elapsed_us)

    def stopping(self, stop: Callable[[], None]) -> Callable[[], None]:
        """How to stop the body, and its span with it."""

        def both() -> None:
            stop()
            if self._span.is_recording():
                self._span.set_attribute("kagzi.stopped", True)
                self._span.end()

        return both


def _mark(labels: MutableMapping[str, str], context: Context) -> None:
    """Puts a context into the labels of a run to be, unless these are full."""
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, context)
    for key, value in carrier.items():
        if len(labels) < _MOST_LABELS and len(value.encode()) <= _MOST_BYTES:
            labels[key] = value


def _parent(labels: Mapping[str, str]) -> Context:
    carrier = {key: labels[key] for key in LABELS if key in labels}
    return TraceContextTextMapPropagator().extract(carrier, Context())


def _of(namespace: str, workflow_type: str, run_id: str) -> dict[str, str]:
    return {"kagzi.namespace": namespace, "kagzi.workflow": workflow_type, "kagzi.run_id": run_id}


def _tracer() -> trace.Tracer:
    return trace.get_tracer("kagzi")
