"""What `prepare` gets to see: what came along with the run as long as nothing newer could be there, else the server's
word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kagzi import Automation, PrepareContext, Prepared
from kagzi.protocol.v1 import automation_pb2 as pb
from tests.automations_sdk.stage import Stage, event

Looks = list[list[str]]

ASKED = pb.PeekedEvents(events=[event("mail", "asked")])


def brought(*ids: str, topic: str = "mail", more: bool = False) -> pb.PeekedTopic:
    return pb.PeekedTopic(topic=topic, events=[event(topic, one) for one in ids], next_cursor="7" if more else "")


async def looked(
    look: Callable[[PrepareContext], Awaitable[Any]], *pending: pb.PeekedTopic, stage: Stage | None = None
) -> tuple[list[Any], int]:
    """What each `prepare` of a run saw, and how often the server was asked."""
    seen = []
    automation = Automation("x", accepts=["mail", "chat"])

    @automation.consumer(subscribe=["mail", "chat"])
    class Look:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            seen.append(await look(ctx))
            return Prepared()

    stage = stage or Stage(peek_events=ASKED)
    await stage.play(automation, "Look", pending=pending)
    assert "fail" not in stage.names
    return seen, stage.names.count("peek_events")


async def ids(ctx: PrepareContext, topic: str = "mail", limit: int = 100) -> list[str]:
    return [one.id for one in await ctx.peek(topic, limit)]


@pytest.mark.parametrize(
    ("pending", "limit", "expected"),
    [
        pytest.param(brought("1", "2"), 100, ["1", "2"], id="all there is"),
        pytest.param(brought("1", "2"), 1, ["1"], id="no more than wanted"),
        pytest.param(brought("1", "2", more=True), 2, ["1", "2"], id="as many as wanted"),
        pytest.param(brought(), 100, [], id="nothing there"),
    ],
)
async def test_the_first_peek_is_answered_by_what_came_along(
    pending: pb.PeekedTopic, limit: int, expected: list[str]
) -> None:
    assert await looked(lambda ctx: ids(ctx, limit=limit), pending) == ([expected], 0)


async def test_who_wants_more_than_came_along_asks_for_all_of_it() -> None:
    stage = Stage(peek_events=ASKED)
    assert await looked(ids, brought("1", "2", more=True), stage=stage) == ([["asked"]], 1)
    request = stage.body("peek_events")
    assert (request.topic, request.limit, request.cursor) == ("mail", 100, "")


async def test_a_topic_that_did_not_come_along_is_asked_for() -> None:
    assert await looked(ids) == ([["asked"]], 1)
    assert await looked(ids, brought("1", topic="chat")) == ([["asked"]], 1)


async def test_every_topic_is_answered_once_by_what_came_along() -> None:
    async def look(ctx: PrepareContext) -> Looks:
        return [await ids(ctx, "chat"), await ids(ctx), await ids(ctx)]

    assert await looked(look, brought("1"), brought("2", topic="chat")) == ([[["2"], ["1"], ["asked"]]], 1)


async def test_a_prepare_that_waited_for_something_is_told_what_is_pending_then() -> None:
    async def look(ctx: PrepareContext) -> list[str]:
        await asyncio.sleep(0)
        return await ids(ctx)

    assert await looked(look, brought("1")) == ([["asked"]], 1)


async def test_a_prepare_that_runs_again_is_told_what_is_pending_then() -> None:
    gone = pb.PrepareCommitted(not_pending=[pb.EventSelection(topic="mail", event_ids=["1"])])
    answers = iter([gone])
    stage = Stage(peek_events=ASKED, commit_prepare=lambda _: next(answers, pb.PrepareCommitted()))
    assert await looked(ids, brought("1"), stage=stage) == ([["1"], ["asked"]], 1)
