"""Debian's Chromium, driven by Playwright against a real server. The browser is started before the server: gRPC gets in
the way of forks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.dashboard.place import Place, Space
from tests.database import Databases


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program, "these tests drive Debian's Chromium: apt install chromium"
    # Its own sandbox does not work for root, as in containers.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def place(chromium: Browser, databases: Databases) -> Iterator[Place]:
    url = databases.create()
    place = Place(url)
    yield place
    place.close()
    databases.drop(url)


@pytest.fixture
def space(place: Place) -> Space:
    return place.space()


@pytest.fixture
def page(chromium: Browser, space: Space) -> Iterator[Page]:
    """A page of a browser that has seen nothing. An error on its console fails the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, base_url=space.place.url)
    context.set_default_timeout(15_000)
    made = context.new_page()
    said: list[str] = []
    made.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    made.on("pageerror", lambda error: said.append(str(error)))
    yield made
    context.close()
    assert said == []
