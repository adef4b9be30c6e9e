"""docs/monitoring.md names every metric, and no other."""

from __future__ import annotations

import re

from kagzi.server.app import Server
from kagzi.server.settings import Settings
from tests.docs.blocks import ROOT

TEXT = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")


async def test_every_metric_is_told_by_the_name_that_prometheus_knows() -> None:
    # It is asked for its measures alone, and connects to nothing.
    server = Server(Settings(server_port=0), "postgresql://nobody@127.0.0.1:1/nothing")
    suffixes = {"counter": "_total", "info": "_info"}
    measured = {f"{family.name}{suffixes.get(family.type, '')}" for family in server.meters._registry.collect()}
    table = TEXT.partition("| metric |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(kagzi_\w+)`", table)) == measured
    # Those that the rest of the text speaks of are among them.
    assert set(re.findall(r"\b(kagzi_\w+)\b", TEXT)) == measured
