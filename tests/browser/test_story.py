"""What a person does with the dashboard, from an empty page to a mended run."""

from __future__ import annotations

import asyncpg
from playwright.sync_api import Page, expect

from tests.dashboard.place import Space
from tests.dashboard.workflows import ALL, GREEDY, payouts


def test_a_run_appears_by_itself_and_finishes_before_ones_eyes(space: Space, page: Page) -> None:
    page.goto(f"/runs?namespace={space.name}")
    expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()
    run_id = space.api("POST", "/runs", json={"workflow_type": "doubled", "input": 21, "external_id": "first"})[
        "run_id"
    ]
    row = page.locator(f"#run-{run_id}")
    expect(row.get_by_text("pending")).to_be_visible()
    with space.worker(*ALL):
        expect(row.get_by_text("completed")).to_be_visible()
    row.get_by_role("link", name="doubled").click()
    expect(page.get_by_role("heading", name="doubled", level=1)).to_be_visible()
    timeline = page.locator("#timeline")
    expect(timeline.get_by_role("link", name="double")).to_be_visible()
    expect(timeline.get_by_role("img", name="attempt 1: completed")).to_be_visible()
    expect(page.locator("#output")).to_contain_text("42")
    timeline.get_by_role("link", name="double").click()
    expect(page.get_by_role("heading", name="double")).to_be_visible()


def test_a_run_that_fails_is_read_and_retried(space: Space, page: Page) -> None:
    with space.worker(*ALL):
        run_id = space.api("POST", "/runs", json={"workflow_type": "parsed", "input": "one"})["run_id"]
        page.goto(f"/runs/{run_id}?namespace={space.name}")
        expect(page.locator("#error")).to_contain_text("invalid literal for int()")
        first = page.locator("#timeline details").first
        first.get_by_text("Attempt 1: ValueError").click()
        expect(first.locator("pre")).to_contain_text("Traceback (most recent call last)")
        # The button came with the live page, and sends the name that came with the first: two clicks start one run.
        once = page.evaluate("new FormData(document.getElementById('retrying')).get('once')")
        assert once == page.locator('main > input[form="retrying"]').get_attribute("value")
        page.get_by_role("button", name="Retry").click()
        expect(page.get_by_text("A new run was started.")).to_be_visible()
        expect(page.locator("#lineage")).to_contain_text(run_id[-8:])
        expect(page.get_by_role("heading", level=1).locator("+ .status")).to_have_text("failed")
        assert run_id not in page.url


def test_a_run_is_cancelled_after_it_was_explained(space: Space, page: Page) -> None:
    with space.worker(*ALL):
        run_id = space.api("POST", "/runs", json={"workflow_type": "approved"})["run_id"]
        page.goto(f"/runs/{run_id}?namespace={space.name}")
        expect(page.locator("#why")).to_contain_text("It waits for the signal approve")
        page.get_by_role("button", name="Cancel …").click()
        page.get_by_label("Why, for people").and_(page.locator("#cancel input")).fill("changed my mind")
        page.get_by_role("button", name="Cancel the run").click()
        expect(page.get_by_role("heading", level=1).locator("+ .status")).to_have_text("cancelled")


def test_a_run_that_was_chosen_stays_when_others_push_it_out_of_the_list(space: Space, page: Page) -> None:
    run_id = space.api("POST", "/runs", json={"workflow_type": "approved"})["run_id"]
    page.goto(f"/runs?namespace={space.name}")
    tick = page.locator(f'input[name="run.{run_id}"]')
    tick.check()

    async def start_many() -> None:
        connection = await asyncpg.connect(space.place.database_url)
        start = "select kagzi.start_workflow('later', namespace => $1) from generate_series(1, 60)"
        await connection.execute(start, space.name)
        await connection.close()

    space.place.do(start_many())
    expect(page.get_by_role("link", name="Older runs")).to_be_visible()
    expect(page.locator(f"#run-{run_id}")).to_contain_text("no longer listed")
    expect(tick).to_be_checked()
    page.get_by_role("button", name="With those chosen …").click()
    page.get_by_role("button", name="Terminate them").click()
    expect(page.locator("#done")).to_have_text("1 run was terminated.")
    assert space.api("GET", f"/runs/{run_id}")["run"]["status"] == "CANCELLED"


def test_a_run_that_was_chosen_stays_when_the_list_becomes_empty(space: Space, page: Page) -> None:
    runs = [space.api("POST", "/runs", json={"workflow_type": "approved"})["run_id"] for _ in range(2)]
    page.goto(f"/runs?namespace={space.name}&status=PENDING")
    page.locator(f'input[name="run.{runs[0]}"]').check()
    with space.worker(*ALL):
        expect(page.get_by_role("heading", name="No run is like that")).to_be_visible()
        expect(page.locator(f"#run-{runs[1]}")).to_have_count(0)
        expect(page.locator(f"#run-{runs[0]}")).to_contain_text("no longer listed")
        page.get_by_role("button", name="With those chosen …").click()
        page.get_by_role("button", name="Terminate them").click()
        expect(page.locator("#done")).to_have_text("1 run was terminated.")


def test_a_signal_is_sent_while_the_page_changes_beneath_the_form(space: Space, page: Page) -> None:
    with space.worker(*ALL):
        run_id = space.api("POST", "/runs", json={"workflow_type": "approved"})["run_id"]
        page.goto(f"/runs/{run_id}?namespace={space.name}")
        page.get_by_role("button", name="Signal …").click()
        payload = page.get_by_label("Payload, as JSON")
        payload.fill('"half wri')
        # The picture of a waiting run grows every second; what is being written stays.
        before = page.locator("#timeline .head .push").inner_text()
        expect(page.locator("#timeline .head .push")).not_to_have_text(before)
        expect(payload).to_have_value('"half wri')
        payload.fill('"written"')
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#output")).to_contain_text('"written"')


def test_a_step_in_doubt_is_resolved_by_a_person(space: Space, page: Page) -> None:
    with space.worker(*ALL):
        run_id = space.api("POST", "/runs", json={"workflow_type": "paid", "input": 500})["run_id"]
        page.goto(f"/runs/{run_id}?namespace={space.name}")
        page.get_by_role("button", name="It happened …").click()
        page.get_by_label("What it returned").fill('"receipt-7"')
        page.get_by_role("button", name="It happened", exact=True).click()
        expect(page.locator("#output")).to_contain_text("receipt-7")


def test_a_schedule_is_made_triggered_and_paused(space: Space, page: Page) -> None:
    with space.worker(*ALL):
        page.goto(f"/schedules?namespace={space.name}")
        expect(page.get_by_role("heading", name="No schedules yet")).to_be_visible()
        page.get_by_role("button", name="New schedule …").click()
        page.get_by_role("textbox", name="Name").fill("nightly")
        page.get_by_label("Workflow").fill("doubled")
        page.get_by_label("When: words, or cron").fill("every day at 2am")
        page.get_by_label("Input, as JSON").fill("21")
        page.get_by_role("button", name="Make it").click()
        expect(page.get_by_text("The schedule was made.")).to_be_visible()
        expect(page.locator("#next li")).to_have_count(10)
        page.get_by_role("button", name="Trigger").click()
        expect(page.locator("#history tbody tr")).to_have_count(1)
        expect(page.locator("#history")).to_contain_text("completed")
        page.get_by_role("button", name="Pause …").click()
        page.get_by_label("Why, for people").fill("holidays")
        page.get_by_role("button", name="Pause it").click()
        expect(page.locator("#paused")).to_contain_text("holidays")
        page.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("heading", level=1).locator("+ .status")).to_have_text("scheduled")


def test_a_parked_mutation_is_resolved_by_a_person(space: Space, page: Page) -> None:
    with space.worker(automations=[payouts]):
        page.goto(f"/automations?namespace={space.name}")
        page.get_by_role("link", name="payouts").click()
        expect(page.locator("#graph text").filter(has_text="asked")).to_be_visible()
        page.get_by_role("button", name="Publish …").click()
        page.get_by_label("Id; published again").fill("p-1")
        page.get_by_role("button", name="Publish", exact=True).click()
        blocked = page.locator("#blocked")
        expect(blocked).to_contain_text("nobody knows", ignore_case=True)
        blocked.get_by_role("button", name="It happened …").click()
        page.get_by_label("What it returned").fill('"receipt-1"')
        page.get_by_role("button", name="It happened", exact=True).click()
        expect(page.get_by_role("heading", level=1).locator("+ .status")).to_have_text("active")
        expect(blocked).to_have_count(0)


def test_a_payload_of_script_stays_text(space: Space, page: Page) -> None:
    with space.worker(*ALL):
        run_id = space.api(
            "POST", "/runs", json={"workflow_type": "parsed", "input": GREEDY, "labels": {"who": GREEDY}}
        )["run_id"]
        page.goto(f"/runs/{run_id}?namespace={space.name}")
        expect(page.locator("#error")).to_contain_text(GREEDY)
    expect(page.locator("#input pre")).to_contain_text(GREEDY)
    assert page.locator("main script").count() == 0
    assert "owned" not in page.title()
    page.goto(f"/runs?namespace={space.name}")
    expect(page.locator(f"#run-{run_id}")).to_contain_text(GREEDY)
    assert "owned" not in page.title()


def test_runs_are_found_by_label_and_by_id(space: Space, page: Page) -> None:
    for number in range(3):
        space.api(
            "POST",
            "/runs",
            json={"workflow_type": "later", "external_id": f"order-{number}", "labels": {"customer": str(number)}},
        )
    page.goto(f"/runs?namespace={space.name}")
    page.keyboard.press("/")
    page.keyboard.type("customer=1")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("order-1")
    page.get_by_role("searchbox").fill("order-2")
    page.get_by_role("button", name="Find").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("order-2")
    page.get_by_role("link", name="Clear").click()
    expect(page.locator("tbody tr")).to_have_count(3)


def test_runs_are_chosen_in_the_list_and_terminated_together(space: Space, page: Page) -> None:
    runs = [space.api("POST", "/runs", json={"workflow_type": "later"})["run_id"] for _ in range(3)]
    page.goto(f"/runs?namespace={space.name}")
    for run_id in runs[:2]:
        page.locator(f"#run-{run_id}").get_by_role("checkbox").check()
    # The list changes beneath; what was chosen stays chosen.
    late = space.api("POST", "/runs", json={"workflow_type": "later"})["run_id"]
    expect(page.locator(f"#run-{late}")).to_be_visible()
    page.get_by_role("button", name="With those chosen …").click()
    page.get_by_role("button", name="Terminate them").click()
    expect(page.get_by_text("2 runs were terminated.")).to_be_visible()
    expect(page.locator("tbody .status", has_text="cancelled")).to_have_count(2)
    expect(page.locator("tbody .status", has_text="pending")).to_have_count(2)


def test_the_theme_is_chosen_and_kept(space: Space, page: Page) -> None:
    page.goto("/runs")
    page.get_by_role("button", name="Theme: auto").click()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    page.goto("/workers")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(20, 23, 27)"
