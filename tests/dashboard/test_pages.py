"""Pages as a browser gets them: what they show, that they escape it, and that forms do what they say and no more."""

from __future__ import annotations

import html
import json
import math
import re
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import asyncpg
import httpx
import pytest

from kagzi.server.clearance import Clearance
from kagzi.store.database import Database
from tests.dashboard.place import Place, Space
from tests.dashboard.workflows import ALL, GREEDY, inbox, long_paid, payouts
from tests.database import Databases


def until(look: Callable[[], Any]) -> Any:
    """What `look` answers once it answers something."""
    limit = time.monotonic() + 20
    while not (found := look()):
        assert time.monotonic() < limit, "it did not come"
        time.sleep(0.02)
    return found


def page(space: Space, path: str, code: int = 200, **query: str) -> str:
    answer = space.http.get(path, params={"namespace": space.name, **query})
    assert answer.status_code == code, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert "unsafe" not in answer.headers["content-security-policy"]
    return answer.text


def press(space: Space, path: str, **fields: str) -> httpx.Response:
    """Sends a form as a page would."""
    page(space, "/runs")
    fields["form_token"] = space.http.cookies["kagzi_form"]
    return space.http.post(path, params={"namespace": space.name}, data=fields)


def ended(space: Space, workflow_type: str, input: Any = None) -> str:
    run_id: str = space.api("POST", "/runs", json={"workflow_type": workflow_type, "input": input})["run_id"]
    space.api("GET", f"/runs/{run_id}/result", 200)
    return run_id


def test_empty_pages_say_what_to_do(space: Space) -> None:
    assert "Nothing has run here yet" in page(space, "/")
    assert "client.start" in page(space, "/runs")
    assert f"kagzi worker shop.orders --namespace {space.name}" in page(space, "/workers")
    assert "No run is like that" in page(space, "/runs", q="nobody")
    assert "client.schedules.create" in page(space, "/schedules")
    assert "Worker(automations=[inbox])" in page(space, "/automations")


def test_a_run_is_shown_with_its_steps_and_payloads(space: Space) -> None:
    with space.worker(*ALL):
        run_id = ended(space, "doubled", 21)
    shown = page(space, f"/runs/{run_id}")
    assert "completed" in shown
    assert re.search(r"<pre[^>]*>42</pre>", shown)
    assert f"/runs/{run_id}/step?id=double" in shown
    assert "function" in page(space, f"/runs/{run_id}/step", id="double")
    assert run_id in page(space, "/runs", type="doubled")
    assert run_id not in page(space, "/runs", type="other")
    assert run_id in page(space, "/runs", q=run_id)


def test_a_step_is_shown_with_each_of_its_attempts(space: Space) -> None:
    with space.worker(*ALL):
        run_id = ended(space, "parsed", "one")
    latest = page(space, f"/runs/{run_id}/step", id="parse")
    assert "invalid literal" in latest
    assert "not the latest" not in latest
    assert f'href="/runs/{run_id}/step?id=parse&amp;attempt=1&amp;namespace={space.name}"' in latest
    assert "not the latest" in page(space, f"/runs/{run_id}/step", id="parse", attempt="1")
    page(space, f"/runs/{run_id}/step", 404, id="parse", attempt="3")
    assert "named by its number" in page(space, f"/runs/{run_id}/step", 400, id="parse", attempt="first")
    assert "there is no step" in page(space, f"/runs/{run_id}/step", 404, id="nowhere").lower()


def test_a_long_history_is_listed_by_name_and_its_doubtful_step_is_there(space: Space) -> None:
    with space.worker(long_paid):
        run_id = space.api("POST", "/runs", json={"workflow_type": "long_paid", "input": 950})["run_id"]
        until(lambda: space.api("GET", f"/runs/{run_id}")["run"]["status"] == "SLEEPING")
    shown = page(space, f"/runs/{run_id}")
    assert "listed by name" in shown
    assert "Nobody knows whether zz-pay happened." in shown
    assert "double-500" not in shown
    found = page(space, f"/runs/{run_id}", step="double-500")
    assert f"/runs/{run_id}/step?id=double-500" in found
    assert "double-501" not in found
    assert "It has no step of that name so far." in page(space, f"/runs/{run_id}", step="double")
    further = re.search(r'href="([^"]*page=[^"]*)"[^>]*>More steps', shown)
    assert further
    assert 'id="fork-steps"' in space.http.get(html.unescape(further[1])).text


def test_what_is_chosen_in_the_list_is_done_with_each(space: Space) -> None:
    waiting = [space.api("POST", "/runs", json={"workflow_type": "later"})["run_id"] for _ in range(3)]
    with space.worker(*ALL):
        failed = ended(space, "parsed", "one")
    assert f'name="run.{failed}"' in page(space, "/runs")

    def choose(action: str, *runs: str) -> str:
        done = press(space, "/runs/chosen", action=action, **{f"run.{run_id}": "on" for run_id in runs})
        return done.text if done.status_code == 200 else space.http.get(done.headers["location"]).text

    # One that cannot be, in the middle, keeps nobody from the others.
    shown = choose("terminate", waiting[0], failed, "garbage", str(uuid.uuid4()), waiting[1])
    assert "2 runs were terminated." in shown
    assert "3 were not" in shown
    assert re.search(f">{failed}</a></td><td[^>]*>It had ended already: failed", shown)
    assert re.search(">garbage</a></td><td[^>]*>[^<]*UUID", shown)
    again = choose("terminate", waiting[0])
    assert "It had ended already: cancelled" in again
    assert "terminated." not in again
    assert "It had ended already: cancelled" in choose("cancel", waiting[0])
    assert "1 run was started anew." in choose("retry", failed, failed.upper())
    assert len(space.api("GET", "/runs", params={"workflow_type": "parsed"})["runs"]) == 2
    assert "1 run was asked to cancel." in choose("cancel", waiting[2])
    statuses = {run_id: space.api("GET", f"/runs/{run_id}")["run"]["status"] for run_id in (*waiting, failed)}
    assert list(statuses.values()) == ["CANCELLED", "CANCELLED", "CANCELLED", "FAILED"]
    assert press(space, "/runs/chosen", action="retry").status_code == 400
    assert press(space, "/runs/chosen", action="forget", **{f"run.{failed}": "on"}).status_code == 400
    assert "201 were not" in choose("retry", *(str(uuid.uuid4()) for _ in range(201)))
    too_many = press(space, "/runs/chosen", **{f"run.{number}": "on" for number in range(1_000)})
    assert (too_many.status_code, "choose fewer" in too_many.text) == (413, True)


def test_runs_chosen_when_the_server_is_away_are_each_said_to_be_left(databases: Databases) -> None:
    url = databases.create()
    place = Place(url)
    try:
        space = place.space()
        page(space, "/runs")
        place.do(place.server.stop(1.0))
        runs = [str(uuid.uuid4()) for _ in range(20)]
        fields = {"form_token": space.http.cookies["kagzi_form"], "action": "cancel"}
        shown = space.http.post("/runs/chosen", data=fields | {f"run.{run_id}": "on" for run_id in runs})
        assert (shown.status_code, "20 were not" in shown.text) == (200, True)
        assert all(run_id in shown.text for run_id in runs)
        assert "it may have been done all the same" in shown.text
    finally:
        place.close()
        databases.drop(url)


def once(space: Space, path: str, form: str) -> str:
    """The name that a form on a page carries for what it makes."""
    shown = page(space, path)
    assert f'id="{form}"' in shown
    found = re.search(f'form="{form}" name="once" value="([^"]+)"', shown)
    assert found
    return found[1]


def test_a_form_that_is_sent_twice_makes_one_run(space: Space) -> None:
    with space.worker(*ALL):
        failed = ended(space, "parsed", "one")
    own = f"/runs/{failed}"
    named = {"workflow_type": "parsed", "external_id": "order-7"}

    def count() -> int:
        return len(space.api("GET", "/runs")["runs"])

    for shown, form, address, fields in (
        (own, "retrying", f"{own}/retry", {}),
        (own, "forking", f"{own}/fork", {"step": "parse"}),
        ("/runs", "many", "/runs/chosen", {"action": "retry", f"run.{failed}": "on"}),
        ("/runs", "starting", "/runs", named),
    ):
        before, name = count(), once(space, shown, form)
        went = {press(space, address, once=name, **fields).headers["location"] for _ in range(2)}
        assert (len(went), count()) == (1, before + 1), form


def test_a_form_that_is_sent_again_with_something_else_makes_another_run(space: Space) -> None:
    name = once(space, "/runs", "starting")
    for fields in ({"once": name, "input": "1"}, {"once": name, "input": "2"}, {}, {}):
        assert press(space, "/runs", workflow_type="parsed", **fields).status_code == 303
    assert len(space.api("GET", "/runs")["runs"]) == 4


def test_payloads_errors_and_names_stay_text(space: Space) -> None:
    with space.worker(*ALL):
        failed = ended(space, "parsed", GREEDY)
    named = space.api("POST", "/runs", json={"workflow_type": GREEDY[:40], "labels": {"a": GREEDY}, "input": GREEDY})
    for path in ("/", "/runs", f"/runs/{failed}", f"/runs/{named['run_id']}"):
        shown = page(space, path)
        assert "<script>document" not in shown
        assert "</script>" not in re.sub(r'<script src="[^"]+" defer></script>', "", shown)
    assert html.escape(GREEDY) in page(space, f"/runs/{failed}").replace("&#34;", "&quot;").replace("&#39;", "&#x27;")


def test_a_failed_step_shows_its_attempts_and_traceback(space: Space) -> None:
    with space.worker(*ALL):
        run_id = ended(space, "parsed", "one")
        shown = page(space, f"/runs/{run_id}")
        assert "Attempt 1: ValueError" in shown
        assert "Attempt 2: ValueError" in shown
        assert "invalid literal for int()" in shown
        answer = press(space, f"/runs/{run_id}/retry")
        assert answer.status_code == 303
        again = answer.headers["location"]
        assert run_id not in again
        followed = space.http.get(again)
        assert "A new run was started." in followed.text
        assert run_id[-8:] in followed.text


def test_a_run_that_waits_is_explained_signalled_and_cancelled(space: Space) -> None:
    with space.worker(*ALL):
        run_id = space.api("POST", "/runs", json={"workflow_type": "approved"})["run_id"]
        until(lambda: space.api("GET", f"/runs/{run_id}")["run"]["status"] == "SLEEPING")
        shown = page(space, f"/runs/{run_id}")
        assert "It waits for the signal approve" in shown
        assert 'value="approve"' in shown
        refused = press(space, f"/runs/{run_id}/signal", name="approve", payload="yes")
        assert (refused.status_code, "is no JSON" in refused.text) == (400, True)
        press(space, f"/runs/{run_id}/signal", name="approve", payload='"yes"')
        assert space.api("GET", f"/runs/{run_id}/result", 200)["output"] == "yes"
        other = space.api("POST", "/runs", json={"workflow_type": "approved"})["run_id"]
        press(space, f"/runs/{other}/cancel", reason="not needed")
        assert space.api("GET", f"/runs/{other}/result", 200)["status"] == "CANCELLED"


def test_a_step_in_doubt_is_resolved(space: Space) -> None:
    with space.worker(*ALL):
        run_id = space.api("POST", "/runs", json={"workflow_type": "paid", "input": 500})["run_id"]
        until(lambda: "Nobody knows whether pay happened" in page(space, f"/runs/{run_id}"))
        press(space, f"/runs/{run_id}/resolve", step="pay", resolution="APPLIED", result='"receipt-7"')
        assert space.api("GET", f"/runs/{run_id}/result", 200)["output"] == "receipt-7"


def test_a_fork_starts_a_new_run_with_other_outputs(space: Space) -> None:
    with space.worker(*ALL):
        run_id = ended(space, "doubled", 21)
        answer = press(space, f"/runs/{run_id}/fork", step="double", input="5")
        new = answer.headers["location"].partition("?")[0].rpartition("/")[2]
        assert space.api("GET", f"/runs/{new}/result", 200)["output"] == 10
        assert press(space, f"/runs/{run_id}/fork", step="double", outputs="[1]").status_code == 400


def test_a_run_is_started_by_hand(space: Space) -> None:
    with space.worker(*ALL):
        answer = press(space, "/runs", workflow_type="doubled", input="4", external_id="by hand")
        run_id = answer.headers["location"].partition("?")[0].rpartition("/")[2]
        assert space.api("GET", f"/runs/{run_id}/result", 200)["output"] == 8
    assert press(space, "/runs", workflow_type="").status_code == 400
    press(space, "/runs", workflow_type="later", external_id="taken")
    assert press(space, "/runs", workflow_type="later", external_id="taken").status_code == 409


def test_the_server_says_what_it_is(space: Space) -> None:
    shown = page(space, "/server")
    assert all(part in shown for part in ("PostgreSQL", "database", "coordinator", "20,000 steps"))


def test_kin_are_linked(space: Space) -> None:
    with space.worker(*ALL):
        run_id = ended(space, "family")
    shown = page(space, f"/runs/{run_id}")
    children = space.api("GET", "/runs", params={"parent_run_id": run_id})["runs"]
    assert len(children) == 3
    assert all(f"/runs/{child['run_id']}" in shown for child in children)
    assert run_id[-8:] in page(space, f"/runs/{children[0]['run_id']}")


def test_a_worker_is_shown_and_drained(space: Space) -> None:
    with space.worker(*ALL, concurrency=7):
        worker = space.api("GET", "/workers")["workers"][0]
        assert "0 of 7" in page(space, "/workers")
        assert worker["worker_id"] in page(space, f"/workers/{worker['worker_id']}")
        press(space, f"/workers/{worker['worker_id']}/drain")
        until(lambda: space.api("GET", f"/workers/{worker['worker_id']}")["worker"]["status"] != "ONLINE")


def test_a_namespace_is_made_changed_disabled_and_enabled(space: Space) -> None:
    name = f"{space.name}/made"
    assert press(space, "/namespaces", name=name, description="for tests").headers["location"].endswith("%2Fmade")
    shown = page(space, f"/namespaces/{name}")
    assert 'value="for tests"' in shown
    press(space, f"/namespaces/{name}", description="changed", completed="1.5")
    made = space.api("GET", f"/namespaces/{name}")["namespace"]
    assert (made["description"], made["retention"]["completed_ms"]) == ("changed", 129_600_000)
    assert press(space, f"/namespaces/{name}", completed="soon").status_code == 400
    press(space, f"/namespaces/{name}/disable")
    assert "disabled" in page(space, f"/namespaces/{name}")
    press(space, f"/namespaces/{name}/enable")
    assert space.api("GET", f"/namespaces/{name}")["namespace"]["enabled"] is True


def test_a_schedule_is_made_triggered_paused_changed_filled_and_deleted(space: Space) -> None:
    made = press(
        space, "/schedules", schedule_id="a/b", workflow_type="doubled", when="every friday at 5pm", input="21"
    )
    assert made.status_code == 303, made.text
    assert "every Friday at 17:00" in page(space, "/schedules")
    here = "/schedules/a%2Fb"
    shown = page(space, here)
    assert len(re.findall(r"<li>[\d-]+ 17:00:00", shown)) == 10
    with space.worker(*ALL):
        press(space, f"{here}/trigger")
        [run] = until(lambda: space.api("GET", f"{here}/runs")["runs"])
        assert space.api("GET", f"/runs/{run['run_id']}/result", 200)["output"] == 42
    assert run["run_id"] in page(space, here)
    press(space, f"{here}/pause", reason="holidays")
    assert "holidays" in page(space, here)
    press(space, f"{here}/resume")
    assert space.api("GET", here)["schedule"]["status"] == "SCHEDULED"
    assert press(space, here, when="whenever").status_code == 400
    press(space, here, when="30 6 * * *", timezone="Asia/Kolkata", overlap="SKIP")
    changed = space.api("GET", here)["schedule"]
    assert (changed["timing"]["cron"], changed["timezone"], changed["overlap"]) == (
        "30 6 * * *",
        "Asia/Kolkata",
        "SKIP",
    )
    span = {"since": "2026-01-01T00:00", "until": "2026-01-04T00:00", "timezone": "Asia/Kolkata"}
    counted = press(space, f"{here}/backfill", **span, dry_run="yes")
    assert "3 slots lie there; 0 existed already." in space.http.get(counted.headers["location"]).text
    assert press(space, f"{here}/backfill", since="then", until="now").status_code == 400
    filled = press(space, f"{here}/backfill", **span, overlap="QUEUE_ALL", dry_run="no")
    assert "3 runs were started; 0 existed already." in space.http.get(filled.headers["location"]).text
    assert press(space, f"{here}/backfill", **span, overlap="WHENEVER").status_code == 400
    assert press(space, f"{here}/delete").status_code == 303
    assert "No schedules yet" in page(space, "/schedules")


def test_a_long_backfill_is_counted_whole_and_started_to_its_end(space: Space) -> None:
    press(space, "/schedules", schedule_id="often", workflow_type="doubled", when="* * * * *")
    span = {"since": "2026-01-01T00:00", "until": "2026-01-01T20:00", "timezone": "UTC"}
    for dry_run, said in (("yes", "1,200 slots lie there;"), ("no", "1,200 runs were started;")):
        done = press(space, "/schedules/often/backfill", **span, dry_run=dry_run)
        assert said in space.http.get(done.headers["location"]).text
    press(space, "/schedules/often/delete")


def test_a_schedule_that_cannot_fire_is_shown_with_its_error(place: Place, space: Space) -> None:
    press(space, "/schedules", schedule_id="lost", workflow_type="doubled", when="* * * * *")

    async def lose_its_zone() -> None:
        connection = await asyncpg.connect(place.database_url)
        await connection.execute(
            "update kagzi.workflow_runs set timezone = 'Mars/Olympus', schedule_error = 'no such zone'"
            " where namespace = $1 and external_id = 'lost'",
            space.name,
        )
        await connection.close()

    place.do(lose_its_zone())
    shown = page(space, "/schedules/lost")
    assert "It cannot fire." in shown
    assert "Mars/Olympus" in shown


def test_an_automation_is_shown_with_its_graph_and_what_came_in(space: Space) -> None:
    with space.worker(automations=[inbox()]):
        until(lambda: "done" in page(space, "/automations/inbox"))
        shown = page(space, "/automations/inbox")
        assert all(
            f"<title>{name}" in shown for name in ("producer poll", "topic mail", "consumer File", "topic filed")
        )
        assert "<script>document" not in shown
        came = page(space, "/automations/inbox/input", source="post", type="letter", id="l-1")
        assert "consumed" in came
        assert "File a letter" in came
        assert "l-1" in page(space, "/automations/inbox/events", topic="filed", status="CONSUMED")
        assert "No event is like that" in page(space, "/automations/inbox/events", status="PENDING")
        press(space, "/automations/inbox/pause")
        assert "paused" in page(space, "/automations")
        press(space, "/automations/inbox/resume")
        assert press(space, "/automations/inbox/run-now").status_code in {303, 409}


def test_pages_show_what_retention_has_left(space: Space, place: Place) -> None:
    async def clear() -> None:
        database = await Database(place.database_url).open()
        connection = await asyncpg.connect(place.database_url)
        await connection.execute("update kagzi.namespaces set retention_events_ms = 1 where namespace = $1", space.name)
        await Clearance(database, timedelta(0), 100).clear(math.inf)
        await connection.close()
        await database.close()

    with space.worker(automations=[inbox()]):
        until(lambda: "done" in page(space, "/automations/inbox"))
        run = next(one for one in space.api("GET", "/runs")["runs"] if one["workflow_type"] == "inbox.File")
    place.do(clear())
    assert "l-1" not in page(space, "/automations/inbox/events")
    assert "l-1" not in page(space, "/automations/inbox")
    page(space, "/automations/inbox/input", 404, source="post", type="letter", id="l-1")
    # The run is kept by its own time, and still tells what it took.
    assert "File" in page(space, f"/runs/{run['run_id']}")


def test_a_blocked_automation_is_resolved(space: Space) -> None:
    with space.worker(automations=[payouts]):
        until(lambda: space.api("GET", "/automations")["automations"])
        press(space, "/automations/payouts/events", topic="payout.asked", event_id="p-1", payload="5")
        until(lambda: "It happened" in page(space, "/automations/payouts"))
        found = space.api("GET", "/automations/payouts")["automation"]["blocked"]
        assert "its automation is blocked" in page(space, f"/runs/{found['run_id']}")
        mutation = found["mutation"]["mutation_id"]
        address = f"/automations/payouts/mutations/{mutation}/resolve"
        assert press(space, address, resolution="MAYBE").status_code == 400
        press(space, address, resolution="HAPPENED", result='"receipt-1"')
        until(lambda: space.api("GET", "/automations/payouts")["automation"]["status"] == "ACTIVE")


@pytest.mark.parametrize("token", [None, "", "x" * 32])
def test_a_form_that_is_not_ours_changes_nothing(space: Space, token: str | None) -> None:
    run_id = space.api("POST", "/runs", json={"workflow_type": "later"})["run_id"]
    page(space, "/runs")
    fields = {} if token is None else {"form_token": token}
    answer = space.http.post(f"/runs/{run_id}/terminate", params={"namespace": space.name}, data=fields)
    assert answer.status_code in {400, 403}
    assert space.api("GET", f"/runs/{run_id}")["run"]["status"] == "PENDING"


def test_cookies_are_for_us_alone(space: Space) -> None:
    answer = space.http.get("/runs")
    [cookie] = answer.headers.get_list("set-cookie")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


def test_what_is_not_there_is_a_page_too(space: Space) -> None:
    assert "There is no run" in page(space, "/runs/00000000-0000-4000-8000-000000000000", 404)
    assert "Not here" in page(space, "/nowhere", 404)
    named = page(space, "/runs/one", 404)
    assert "UUID" in named
    assert f'href="/runs?q=one&amp;namespace={space.name}"' in named
    assert 'href="/namespaces"' in space.http.get("/runs?namespace=nowhere").text


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/runs?status=NOPE", "There is no status NOPE"),
        ("/runs?since=3y", "3y is no time to look back"),
        ("/runs?label=customer", "customer is no label"),
        ("/runs?q=order-7&status=FAILED", "an id is looked for without other filters"),
        ("/?range=2y", "2y is no range"),
    ],
)
def test_a_filter_that_cannot_be_used_is_named(space: Space, path: str, said: str) -> None:
    shown = space.http.get(f"{path}&namespace={space.name}")
    assert shown.status_code == 200
    assert said in html.unescape(shown.text)
    assert "Not used" not in page(space, "/runs", status="FAILED", since="1h", type="order")


def test_a_number_that_none_of_ours_has_is_none(space: Space) -> None:
    run_id = space.api("POST", "/runs", json={"workflow_type": "nobody"})["run_id"]
    long = "9" * 5_000
    for digits in ("2147483648", "-2147483649", "9" * 20, long, "--1", "²"):
        assert "named by its number" in page(space, f"/runs/{run_id}/step", 400, id="double", attempt=digits)
    space.api("POST", "/schedules", json={"schedule_id": "s", "workflow_type": "t", "timing": {"cron": "@daily"}})
    assert "were started" not in page(space, "/schedules/s", started=long, existed="1")
    assert "existed already" in page(space, "/schedules/s", started="1", existed="1", left=long)
    page(space, "/runs", action="retry", changed=long, left="0")
    page(space, "/runs", action="retry", changed="1", left=long)


@pytest.mark.parametrize("text", ["NaN", "1e400", '"\\ud800"'])
def test_a_value_that_cannot_be_sent_is_refused_by_a_page(space: Space, text: str) -> None:
    run_id = space.api("POST", "/runs", json={"workflow_type": "nobody"})["run_id"]
    for path, fields in (
        ("/runs", {"workflow_type": "nobody", "input": text}),
        (f"/runs/{run_id}/signal", {"name": "go", "payload": text}),
    ):
        answer = press(space, path, **fields)
        assert (answer.status_code, answer.headers["content-type"]) == (400, "text/html; charset=utf-8"), answer.text
        assert "JSON cannot carry" in answer.text
    assert len(space.api("GET", "/runs")["runs"]) == 1


def test_changes_come_as_events(space: Space) -> None:
    address = f"/runs?namespace={space.name}"
    with space.http.stream("GET", address, headers={"accept": "text/event-stream"}) as events:
        assert events.headers["content-type"].startswith("text/event-stream")
        pages = (json.loads(line.removeprefix("data: ")) for line in events.iter_lines() if line.startswith("data: "))
        assert "No runs yet" in next(pages)
        run_id = space.api("POST", "/runs", json={"workflow_type": "later"})["run_id"]
        assert run_id in next(pages)


def test_signing_in_keeps_the_key_where_no_script_reads_it(space: Space) -> None:
    assert "API key" in page(space, "/signin")
    answer = press(space, "/signin", key="some-key", to="/runs")
    assert answer.headers["location"] == "/runs"
    [cookie] = answer.headers.get_list("set-cookie")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert press(space, "/signin", key="some-key", to="https://other.example").headers["location"] == "/"
    assert press(space, "/signin", key="some-key", to="//other.example").headers["location"] == "/"
    assert press(space, "/signin", key="\x00").headers["location"] == "/signin?wrong=1"
    assert "Sign out" in page(space, "/runs")
    press(space, "/signout")
    assert "Sign out" not in page(space, "/runs")
