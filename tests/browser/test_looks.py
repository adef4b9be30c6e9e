"""How every page looks: at three widths, light and dark, nothing stands out to the side, every text can be read, and
the console is silent.
"""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.place import Place, Space
from tests.dashboard.workflows import ALL, GREEDY, inbox, payouts

WIDTHS = (375, 1280, 1920)
LEAST = 4.5

# Texts whose contrast with what lies behind them is too low, and how low.
FAINT = """
least => {
  const parse = text => {
    const made = text.match(/[\\d.]+/g).map(Number);
    return text.startsWith("color(") ? [...made.slice(0, 3).map(part => part * 255), made[3] ?? 1]
                                     : [made[0], made[1], made[2], made[3] ?? 1];
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(part => {
      const share = part / 255;
      return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = node => {
    if (!node) return parse(getComputedStyle(document.documentElement).backgroundColor);
    const own = parse(getComputedStyle(node).backgroundColor);
    return own[3] === 1 ? own : over(own, ground(node.parentElement));
  };
  const faint = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    const text = walk.currentNode.data.trim();
    if (!text || !node.checkVisibility({checkOpacity: true, checkVisibilityCSS: true})) continue;
    if (node.closest("title, option, script, noscript, .unseen")) continue;
    const style = getComputedStyle(node);
    const behind = ground(node);
    const ink = over(parse(node instanceof SVGElement ? style.fill : style.color), behind);
    const [a, b] = [light(ink), light(behind)].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < least) faint.push(`${node.tagName}.${node.className}: ${text} ${contrast.toFixed(2)}`);
  }
  return faint;
}
"""


# Sheets that hide a part of what is on them.
CUT = """
() => [...document.querySelectorAll(".sheet")].filter(node => node.scrollWidth > node.clientWidth)
  .map(node => `${node.id} ${node.scrollWidth} > ${node.clientWidth}`)
"""
# What can be pressed or filled in and was not reached yet; whoever gets the focus is struck off.
WATCH = """
() => {
  const all = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [popovertarget]")];
  window.left = new Set(all.filter(node => node.checkVisibility() && node.type !== "hidden" && !node.disabled));
  document.addEventListener("focusin", event => window.left.delete(event.target));
  return window.left.size;
}
"""
# Those that are still on the page: it may have changed meanwhile.
LEFT = "() => [...window.left].filter(node => node.isConnected).map(node => node.outerHTML.slice(0, 120))"


@pytest.fixture(scope="module")
def furnished(place: Place) -> dict[str, str]:
    """A namespace with something of everything, and the address of every page of it."""
    space = place.space()
    pages = {"empty-overview": "/", "empty-runs": "/runs", "empty-workers": "/workers"}
    pages |= {"empty-schedules": "/schedules", "empty-automations": "/automations"}
    empty = place.space()
    pages = {name: f"{path}?namespace={empty.name}" for name, path in pages.items()}
    with space.worker(*ALL, automations=[inbox(), payouts]):
        runs = {
            "completed": _run(space, "family"),
            "failed": _run(space, "parsed", GREEDY * 3),
        }
        runs["waiting"] = _start(space, "approved", external_id="a-name-without-any-space-" * 9)
        runs["doubt"] = _start(space, "paid", 500)
        runs["unserved"] = _start(space, "nobody-knows-it", labels={"customer": "7", "x" * 200: "y" * 200})
        for run_id in (runs["waiting"], runs["doubt"]):
            while space.api("GET", f"/runs/{run_id}")["run"]["status"] != "SLEEPING":
                pass
        timing = {"timing": {"text": "every friday at 5pm"}, "timezone": "Asia/Kolkata"}
        for name in ("nightly", "a-name-without-any-space-" * 7):
            space.api(
                "POST", "/schedules", json={"schedule_id": name, "workflow_type": "doubled", "input": 21, **timing}
            )
        space.api("POST", "/schedules/nightly/trigger", json={})
        space.api(
            "POST", "/automations/payouts/events", json={"events": [{"topics": ["payout.asked"], "event_id": "p-1"}]}
        )
        for name, status in (("payouts", "BLOCKED"), ("inbox", "ACTIVE")):
            while space.api("GET", f"/automations/{name}")["automation"]["status"] != status:
                pass
        worker = space.api("GET", "/workers")["workers"][0]["worker_id"]
    own = f"?namespace={space.name}"
    return pages | {
        "overview": f"/{own}",
        "runs": f"/runs{own}",
        **{f"run-{name}": f"/runs/{run_id}{own}" for name, run_id in runs.items()},
        "step": f"/runs/{runs['failed']}/step{own}&id=parse&attempt=1",
        "schedules": f"/schedules{own}",
        "schedule": f"/schedules/nightly{own}",
        "automations": f"/automations{own}",
        "automation": f"/automations/inbox{own}",
        "automation-blocked": f"/automations/payouts{own}",
        "events": f"/automations/inbox/events{own}",
        "input": f"/automations/inbox/input{own}&source=post&type=letter&id=l-1",
        "workers": f"/workers{own}&show=all",
        "worker": f"/workers/{worker}{own}",
        "namespaces": "/namespaces",
        "namespace": f"/namespaces/{space.name}",
        "server": f"/server{own}",
        "signin": "/signin",
        "problem": "/nowhere",
        "reference": "/api/docs",
    }


def _start(space: Space, workflow_type: str, input: Any = None, **more: Any) -> str:
    run_id: str = space.api("POST", "/runs", json={"workflow_type": workflow_type, "input": input, **more})["run_id"]
    return run_id


def _run(space: Space, workflow_type: str, input: Any = None) -> str:
    run_id = _start(space, workflow_type, input)
    space.api("GET", f"/runs/{run_id}/result", 200)
    return run_id


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_fits_and_can_be_read(
    chromium: Browser, place: Place, furnished: dict[str, str], width: int, scheme: Any
) -> None:
    context = chromium.new_context(
        viewport={"width": width, "height": 900}, base_url=place.url, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    wrong: dict[str, Any] = {}
    for name, address in furnished.items():
        page.goto(address)
        # A page that is not there says so on the console too, as browsers do.
        said = [text for text in said if "404" not in text]
        out = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        faint = page.evaluate(FAINT, LEAST)
        cut = page.evaluate(CUT)
        if out > 0 or faint or said or cut:
            wrong[name] = (out, faint[:5], list(said), cut)
    context.close()
    assert wrong == {}


def test_every_page_is_walked_through_with_the_tab_key(
    chromium: Browser, place: Place, furnished: dict[str, str]
) -> None:
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, base_url=place.url)
    page = context.new_page()
    missed: dict[str, list[str]] = {}
    walked = 0
    # One of each kind; the reference is hundreds of alike headings.
    alike = {"reference", "problem", "automations", "run-completed", "run-unserved"}
    for name in [name for name in furnished if name not in alike and not name.startswith("empty")]:
        page.goto(furnished[name])
        there = page.evaluate(WATCH)
        walked += there
        # A page that changes beneath may send whoever walks through it back to its top.
        for _ in range(3 * (there + 5)):
            page.keyboard.press("Tab")
            if page.evaluate("window.left.size") == 0:
                break
        if left := page.evaluate(LEFT):
            missed[name] = left
    context.close()
    assert missed == {}
    assert walked > len(furnished)


def test_everything_that_can_be_pressed_is_reached_by_keyboard(page: Page, place: Place) -> None:
    space = place.space()
    with space.worker(*ALL):
        run_id = _start(space, "approved")
        page.goto(f"/runs/{run_id}?namespace={space.name}")
        expect(page.locator("#why")).to_contain_text("approve")
        reached = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.textContent.trim()"))
        assert {"Signal …", "Cancel …", "Terminate …", "Fork …", "Copy", "Runs", "Theme: auto"} <= reached
        page.get_by_role("button", name="Terminate …").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Terminate this run")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("heading", name="Terminate this run")).to_be_hidden()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.type("by keyboard")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1).locator("+ .status")).to_have_text("cancelled")
        expect(page.locator("#error")).to_contain_text("by keyboard")
