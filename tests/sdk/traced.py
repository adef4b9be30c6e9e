"""A program with a tracer provider: runs a workflow with steps, a failure and a child, and prints its spans."""

from __future__ import annotations

import asyncio
import json
import sys

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kagzi import Client, Context, Retry, Worker, step, workflow

attempts = 0
seen: list[str] = []


@step
async def look() -> str:
    with trace.get_tracer("user").start_as_current_span("inside"):
        return "looked"


@step(retry=Retry(max_attempts=2, initial="5ms"))
def flaky() -> None:
    global attempts  # noqa: PLW0603 - counted over attempts
    attempts += 1
    if attempts == 1:
        raise ValueError("secret-in-a-message")


@workflow
async def child(ctx: Context) -> None:
    await ctx.step("look", look)


@workflow
async def parent(ctx: Context) -> None:
    seen.extend(ctx.labels)
    await ctx.step("look", look)
    await ctx.step("flaky", flaky)
    await ctx.run_child("child", child)


async def main(address: str) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    async with Worker(address, workflows=[parent, child]), Client(address) as client:
        with trace.get_tracer("user").start_as_current_span("request"):
            await client.execute(parent, labels={"customer": "7"})
    spans = [
        {
            "name": span.name,
            "trace": span.context.trace_id if span.context else 0,
            "id": span.context.span_id if span.context else 0,
            "parent": span.parent.span_id if span.parent else None,
            "status": span.status.status_code.name,
            "attributes": dict(span.attributes or {}),
        }
        for span in exporter.get_finished_spans()
    ]
    sys.stdout.write(json.dumps({"spans": spans, "labels": seen}))


asyncio.run(main(sys.argv[1]))
