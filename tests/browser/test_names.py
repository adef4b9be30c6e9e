"""Pages whose every name is as long as an unbroken one gets: types, queues, ids, labels, errors, topics. Nothing pushes
a page, or a form upon it, beyond the width of the screen.
"""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest
from playwright.sync_api import Browser

from kagzi import (
    Automation,
    Context,
    MutateContext,
    NonRetryable,
    PrepareContext,
    Prepared,
    ProducerContext,
    mutation,
    step,
    workflow,
)
from tests.dashboard.place import Place

# A phone, a tablet, where there is least room for two columns, and a screen.
WIDTHS = (390, 768, 1180, 1280)
# What stands out to the side of the page, or of a sheet, a notice or a form on it.
OUT = """
() => {
  const wrong = [];
  const root = document.documentElement;
  if (root.scrollWidth > innerWidth) wrong.push(`page ${root.scrollWidth} > ${innerWidth}`);
  const look = node => {
    const box = node.getBoundingClientRect();
    if (box.right > innerWidth + 1 || node.scrollWidth > node.clientWidth + 1)
      wrong.push(`${node.tagName}#${node.id}.${node.className} ${node.scrollWidth} > ${node.clientWidth}`);
  };
  document.querySelectorAll(".sheet, .notice, .tile, .head").forEach(node => node.checkVisibility() && look(node));
  for (const form of document.querySelectorAll("[popover]")) {
    form.showPopover();
    look(form);
    form.hidePopover();
  }
  return wrong;
}
"""


def long(letter: str) -> str:
    return letter * 200


# The longest that an automation, or a handler, may have.
NAME = long("a")[:127]
Failure = type(long("E"), (NonRetryable,), {})


@step
async def breaks() -> None:
    raise Failure(long("m"))


@step(effect=True)
async def doubtful() -> None:
    raise TimeoutError(long("t"))


@workflow(name=long("f"), queue=long("q"))
async def fails(ctx: Context, text: str) -> None:
    await ctx.set_state({long("k"): long("v")})
    await ctx.step(long("s"), breaks)


@workflow(name=long("w"), queue=long("q"))
async def waits(ctx: Context) -> Any:
    return await ctx.receive(long("r"), str)


@workflow(name=long("d"), queue=long("q"))
async def doubts(ctx: Context) -> None:
    await ctx.step(long("e"), doubtful)


@workflow(name=long("p"), queue=long("q"))
async def parent(ctx: Context) -> Any:
    return await ctx.run_child(long("c"), waits)


@mutation
async def changes() -> None:
    raise TimeoutError(long("t"))


def automation() -> Automation:
    """Its mutation is in doubt."""
    made = Automation(NAME, queue=long("q"))

    @made.producer(name=long("P")[:127], every="1h", publishes=[long("o")])
    async def produce(ctx: ProducerContext, state: Any) -> None:
        source = ctx.register_input(long("S"), long("T"), long("I"), title=long("t"))
        ctx.publish(long("o"), id=long("i"), payload={long("k"): long("v")}, input=source)

    @made.consumer(name=long("C")[:127], subscribe=[long("o")])
    class Consume:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            found = await ctx.peek(long("o"), limit=1)
            return Prepared(reserve={long("o"): [found[0].id]}, title=long("t")) if found else Prepared()

        async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
            await ctx.mutate(changes)

    return made


@pytest.fixture(scope="module")
def pages(place: Place) -> dict[str, str]:
    """Every page that shows a name."""
    space = place.space(long("n"))
    labels = {long("x"): long("y"), "customer": long("z")}
    ids = {"labels": labels, "task_queue": long("q")}

    def start(kind: str, **more: Any) -> str:
        run_id: str = space.api("POST", "/runs", json={"workflow_type": long(kind), **ids, **more})["run_id"]
        return run_id

    workflows = (fails, waits, doubts, parent)
    with space.worker(*workflows, automations=[automation()], queue=long("q"), labels=labels):
        runs = {
            "failed": start("f", input=long("i"), external_id=long("E")),
            "waiting": start("w", external_id=long("W")),
            "doubtful": start("d"),
            "parent": start("p"),
            "unserved": start("z", version=long("v")),
        }
        space.api("GET", f"/runs/{runs['failed']}/result", 200)
        for name in ("waiting", "doubtful", "parent"):
            while space.api("GET", f"/runs/{runs[name]}")["run"]["status"] != "SLEEPING":
                pass
        timing = {"timing": {"text": "every friday at 5pm"}, "input": long("i"), **ids}
        space.api("POST", "/schedules", json={"schedule_id": long("S"), "workflow_type": long("w"), **timing})
        space.api("POST", f"/schedules/{long('S')}/trigger", json={})
        space.api("POST", f"/schedules/{long('S')}/pause", json={"reason": long("R")})
        while space.api("GET", f"/automations/{NAME}")["automation"]["status"] != "BLOCKED":
            pass
        worker = space.api("GET", "/workers")["workers"][0]["worker_id"]
    space.api("POST", "/keys", json={"name": long("K"), "role": "CLIENT"})
    place.do(_spoil(place.database_url, space.name))
    own = f"?namespace={space.name}"
    named = f"/automations/{NAME}"
    return {
        "overview": f"/{own}",
        "runs": f"/runs{own}",
        "runs by label": f"/runs{own}&q={long('x')}%3D{long('y')}&type={long('f')}&queue={long('q')}",
        **{f"run {name}": f"/runs/{run_id}{own}" for name, run_id in runs.items()},
        "step": f"/runs/{runs['failed']}/step{own}&id={long('s')}",
        "schedules": f"/schedules{own}",
        "schedule": f"/schedules/{long('S')}{own}",
        "automations": f"/automations{own}",
        "automation": f"{named}{own}",
        "events": f"{named}/events{own}",
        "input": f"{named}/input{own}&source={long('S')}&type={long('T')}&id={long('I')}",
        "workers": f"/workers{own}&show=all",
        "worker": f"/workers/{worker}{own}",
        "namespaces": "/namespaces",
        "namespace": f"/namespaces/{space.name}",
        "server": f"/server{own}",
        "problem": f"/{long('n')}",
        "no such run": f"/runs/{long('n')}{own}",
    }


async def _spoil(url: str, namespace: str) -> None:
    """What no call sets to something long: a host's name, and why a schedule cannot fire."""
    connection = await asyncpg.connect(url)
    await connection.execute("update kagzi.workers set hostname = $2 where namespace = $1", namespace, long("h"))
    await connection.execute(
        "update kagzi.workflow_runs set schedule_error = $2 where namespace = $1 and status = 'PAUSED'",
        namespace,
        long("x"),
    )
    await connection.execute("update kagzi.namespaces set description = $2 where namespace = $1", namespace, long("D"))
    await connection.close()


def test_names_without_a_place_to_break_push_nothing_aside(
    chromium: Browser, place: Place, pages: dict[str, str]
) -> None:
    context = chromium.new_context(base_url=place.url)
    page = context.new_page()
    wrong = {}
    for name, address in pages.items():
        page.goto(address)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            if out := page.evaluate(OUT):
                wrong[name, width] = out
    context.close()
    assert wrong == {}
