"""Takes the pictures of docs/dashboard.md: `python -m tools.screenshots`. A server with an embedded PostgreSQL and a
worker of `tools/shop.py` live for some minutes, as processes of their own, and Debian's Chromium looks at every page.
Nothing of it remains but the pictures.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
LIFE_SECS = float(os.environ.get("LIFE_SECS", "200"))
SHOP = "shop"
# Every page once, and these in other looks too.
VARIED = ("overview", "run", "automation")
LOOKS: dict[str, dict[str, Any]] = {"": {}, "-dark": {"scheme": "dark"}, "-phone": {"width": 375}}


@contextlib.contextmanager
def process(*words: str, ready: str) -> Iterator[str]:
    """A command of ours, and what it had said when it was ready."""
    command = [sys.executable, "-c", "from kagzi.cli import main; main()", *words]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    said = ""
    try:
        assert running.stdout is not None
        while ready not in said:
            line = running.stdout.readline()
            assert line, f"{words} ended and had said: {said}"
            said += line
        yield said
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(60)


class Shop:
    """What goes on in the shop, told over HTTP."""

    def __init__(self, site: str) -> None:
        self._http = httpx.Client(base_url=f"{site}/api/v1", timeout=30, params={"namespace": SHOP})

    def ask(self, verb: str, path: str, **more: Any) -> Any:
        answer = self._http.request(verb, path, **more)
        assert answer.is_success, answer.text
        return answer.json()

    def start(self, workflow_type: str, input: Any = None, **more: Any) -> str:
        run_id: str = self.ask("POST", "/runs", json={"workflow_type": workflow_type, "input": input, **more})["run_id"]
        return run_id

    def open(self) -> None:
        """What is there from the beginning."""
        self.ask("POST", "/namespaces", json={"name": SHOP, "description": "Tea and cups"})
        self.ask("POST", "/namespaces", json={"name": "empty"})
        for name, role in (("workers in Frankfurt", "WORKER"), ("the web shop", "CLIENT"), ("Ada", "ADMIN")):
            self.ask("POST", "/keys", json={"name": name, "role": role})

    def plan(self) -> None:
        def schedule(name: str, workflow_type: str, timing: dict[str, Any], **more: Any) -> None:
            self.ask(
                "POST",
                "/schedules",
                json={"schedule_id": name, "workflow_type": workflow_type, "timing": timing, **more},
            )

        schedule("nightly-report", "nightly_report", {"cron": "0 2 * * *"}, timezone="Europe/Berlin", overlap="SKIP")
        schedule("restock", "order", {"text": "every 30 seconds"}, input=_order(0))
        schedule("fridays", "holiday", {"text": "every friday at 5pm"}, input="everybody")
        self.ask("POST", "/schedules/fridays/pause", json={"reason": "until summer"})
        self.start("nightly_report")
        self.start("export_everything", {"since": "2020"}, task_queue="large-machines")
        self.ask(
            "POST", "/automations/payouts/events", json={"events": [{"topics": ["payout.asked"], "event_id": "p-1"}]}
        )

    def live(self, seconds: float) -> None:
        """Orders come in, now faster, now slower."""
        until = time.monotonic() + seconds
        number = 0
        while time.monotonic() < until:
            number += 1
            labels = {"customer": str(number % 7), "region": "eu"}
            self.start("order", _order(number), external_id=f"order-{number}", labels=labels)
            if number % 17 == 0:
                self.start("import_prices", "<script>alert('19.99')</script>", labels={"file": "prices.csv"})
            if number % 23 == 0:
                self.start("holiday", "Ada", external_id=f"holiday-{number}")
            if number % 40 == 5:
                self.start("refund", 500)
            time.sleep(0.25 + 0.75 * abs((number % 60) - 30) / 30)

    def one(self, workflow_type: str, status: str) -> str:
        """The newest run of this kind."""
        runs = self.ask(
            "GET", "/runs", params={"workflow_type": workflow_type, "status": status, "page_size": 1, "namespace": SHOP}
        )
        run_id: str = runs["runs"][0]["run_id"]
        return run_id

    def retried(self) -> str:
        """The newest order whose card terminal was asked twice."""
        for run in self.ask(
            "GET", "/runs", params={"workflow_type": "order", "status": "COMPLETED", "namespace": SHOP}
        )["runs"]:
            if self.ask("GET", f"/runs/{run['run_id']}")["run"]["input"]["cents"] % 3 == 0:
                run_id: str = run["run_id"]
                return run_id
        raise AssertionError("no order was retried")

    def pages(self) -> dict[str, str]:
        """Where every page is."""
        failed = self.one("import_prices", "FAILED")
        worker = self.ask("GET", "/workers")["workers"][0]["worker_id"]
        own = f"?namespace={SHOP}"
        return {
            "overview": f"/{own}",
            "runs": f"/runs{own}",
            "run": f"/runs/{self.retried()}{own}",
            "run-failed": f"/runs/{failed}{own}",
            "run-waiting": f"/runs/{self.one('holiday', 'SLEEPING')}{own}",
            "run-in-doubt": f"/runs/{self.one('refund', 'SLEEPING')}{own}",
            "run-not-running": f"/runs/{self.one('export_everything', 'PENDING')}{own}",
            "step": f"/runs/{failed}/step{own}&id=parse",
            "schedules": f"/schedules{own}",
            "schedule": f"/schedules/restock{own}",
            "automations": f"/automations{own}",
            "automation": f"/automations/email-to-sheets{own}",
            "automation-blocked": f"/automations/payouts{own}",
            "events": f"/automations/email-to-sheets/events{own}",
            "input": f"/automations/email-to-sheets/input{own}&source=mailbox&type=email&id=m0",
            "workers": f"/workers{own}",
            "worker": f"/workers/{worker}{own}",
            "namespaces": "/namespaces",
            "namespace": f"/namespaces/{SHOP}",
            "server": f"/server{own}",
            "empty": "/runs?namespace=empty",
            "signin": "/signin",
            "reference": "/api/docs",
        }


def _order(number: int) -> dict[str, Any]:
    return {"id": str(number), "items": ["tea", "cups"], "cents": 2450 + number}


def take(browser: Browser, site: str, name: str, path: str, *, width: int = 1280, scheme: Any = "light") -> None:
    """One picture, at most two screens high."""
    context = browser.new_context(viewport={"width": width, "height": 800}, base_url=site, color_scheme=scheme)
    page = context.new_page()
    page.goto(path)
    page.wait_for_timeout(1_500)
    height = min(1_600, page.evaluate("document.documentElement.scrollHeight"))
    page.set_viewport_size({"width": width, "height": height})
    file = IMAGES / f"{name}.png"
    page.screenshot(path=file)
    print(f"{file.relative_to(ROOT)} {file.stat().st_size // 1024} KiB")
    context.close()


def main(*wanted: str) -> None:
    """Takes the pictures that are wanted by name, or all of them."""
    program = shutil.which("chromium")
    assert program, "apt install chromium"
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="shop-") as folder, contextlib.ExitStack() as stack:
        said = stack.enter_context(
            process("dev", "--port", "0", "--http-port", "0", "--data-dir", f"{folder}/data", ready="dashboard: ")
        )
        grpc = said.split("listens on ")[1].split()[0]
        site = said.split("dashboard: ")[1].split()[0]
        shop = Shop(site)
        shop.open()
        # Tracebacks show where the code is.
        code = shutil.copy(ROOT / "tools" / "shop.py", folder)
        stack.enter_context(process("worker", code, "--url", grpc, "--namespace", SHOP, ready="Runs "))
        while len(shop.ask("GET", "/automations")["automations"]) < 2:
            time.sleep(0.1)
        shop.plan()
        shop.live(LIFE_SECS)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=arguments)
            pages = shop.pages()
            for name, path in pages.items():
                for suffix, look in LOOKS.items():
                    if (name in VARIED or not suffix) and (not wanted or name in wanted):
                        take(browser, site, name + suffix, path, **look)
            browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
