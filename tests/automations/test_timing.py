"""When a producer runs, as it is declared and as it is deployed: in one of three ways, in the zone that it names."""

from __future__ import annotations

from typing import Any

import pytest

from kagzi.automations.automation import Automation
from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.server.api import definitions


def deployed(**timing: Any) -> tuple[pb.HandlerDefinition, tuple[str | None, str | None]]:
    """What is sent of a producer, and what a server in Berlin makes of it: the expression or interval, and the zone."""
    inbox = Automation("inbox")

    @inbox.producer(publishes=["mail"], **timing)
    async def poll(ctx: object, state: object) -> None: ...

    sent = inbox.definition("default")
    handler = definitions.definition(sent, "Europe/Berlin", "default").handlers[0]
    return sent.handlers[0], (handler.schedule_value, handler.timezone)


@pytest.mark.parametrize(
    ("timing", "expected"),
    [
        ({"text": "every day at 9:00"}, ("0 9 * * *", "Europe/Berlin")),
        ({"text": "every day at 9:00", "timezone": "Asia/Tokyo"}, ("0 9 * * *", "Asia/Tokyo")),
        ({"text": "every day at 9:00 (Asia/Tokyo)"}, ("0 9 * * *", "Asia/Tokyo")),
        ({"text": "every day at 9:00 (UTC)", "timezone": "Asia/Tokyo"}, ("0 9 * * *", "UTC")),
        ({"text": "every 90 minutes"}, ("5400000", "Europe/Berlin")),
        ({"cron": "@daily", "timezone": "Asia/Tokyo"}, ("0 0 * * *", "Asia/Tokyo")),
        ({"every": "5m"}, ("300000", "Europe/Berlin")),
    ],
)
def test_a_producer_lives_in_the_zone_it_names(timing: dict[str, str], expected: tuple[str, str]) -> None:
    assert deployed(**timing)[1] == expected


def test_words_that_name_a_zone_mean_it_on_a_server_too() -> None:
    sent, _ = deployed(text="every day at 9:00")
    sent.timing.text = "every day at 9:00 (Asia/Tokyo)"
    definition = pb.AutomationDefinition(name="inbox", definition_hash="1", handlers=[sent])
    assert definitions.definition(definition, "Europe/Berlin", "default").handlers[0].timezone == "Asia/Tokyo"
