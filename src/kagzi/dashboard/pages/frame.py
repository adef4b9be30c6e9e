"""How a view becomes a page: templates that escape everything they are given, the frame around each page, and the
errors of people as pages too. It asks the server for nothing but the namespaces in the frame.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from kagzi.dashboard import wording, words
from kagzi.dashboard.credentials import of_person
from kagzi.dashboard.gateway import Gateway
from kagzi.dashboard.pages import forms
from kagzi.dashboard.pages.live import Live
from kagzi.dashboard.pages.visit import View, Visit, part
from kagzi.dashboard.problems import Problem
from kagzi.sdk.errors import ServerError, Unauthorized

Look = Callable[[Visit], Awaitable[View]]
# Does what a form asks for, and answers where its effect is seen: an address to go to, or what to show at once.
Act = Callable[[Visit, Mapping[str, str]], Awaitable[str | View | Response]]
Endpoint = Callable[[Request], Awaitable[Response]]

NAVIGATION = (
    ("/", "Overview"),
    ("/runs", "Runs"),
    ("/schedules", "Schedules"),
    ("/automations", "Automations"),
    ("/workers", "Workers"),
    ("/namespaces", "Namespaces"),
    ("/api/docs", "API"),
)
_THEMES = {"light", "dark"}
_EVENTS = "text/event-stream"


class Frame:
    """Makes pages of views, and keeps them live."""

    def __init__(self, server: Gateway) -> None:
        self._server = server
        self.live = Live()
        self._templates = _templates()

    def show(self, look: Look) -> Endpoint:
        """The endpoint of a page: the page itself, or its changes for who listens to events."""

        async def page(request: Request) -> Response:
            visit = Visit(request, self._server)

            async def make() -> tuple[str, float]:
                view = await look(visit)
                return self._part(visit, view), view.every_secs

            if request.headers.get("accept") == _EVENTS:
                return self.live.stream(visit, make)
            try:
                return await self._page(visit, await look(visit))
            except ServerError as error:
                return await self._refused(visit, error)
            except Problem as problem:
                return await self.problem(visit, problem)

        return page

    def do(self, act: Act) -> Endpoint:
        """The endpoint of a form: does it, and goes to where its effect is seen."""

        async def form(request: Request) -> Response:
            visit = Visit(request, self._server)
            try:
                done = await act(visit, await forms.read(request))
                if isinstance(done, View):
                    return await self._page(visit, done)
                return RedirectResponse(done, 303) if isinstance(done, str) else done
            except ServerError as error:
                return await self._refused(visit, error)
            except Problem as problem:
                return await self.problem(visit, problem)

        return form

    async def _refused(self, visit: Visit, error: ServerError) -> Response:
        """Whoever has no valid key is asked for one; whoever has one is told that it is not enough."""
        if isinstance(error, Unauthorized) and error.code == "UNAUTHORIZED":
            return _sign_in(visit.request)
        problem = Problem.of(error)
        if problem.code == "INVALID_ARGUMENT" and problem.field in visit.request.path_params:
            # Nothing can be at an address that names nothing.
            problem = Problem("NOT_FOUND", _nothing_there(visit, problem))
        return await self.problem(visit, problem)

    async def problem(self, visit: Visit, problem: Problem) -> Response:
        """A page that says what went wrong and what to do."""
        status = 403 if problem.code == "UNAUTHORIZED" else int(problem.status)
        shown = {"problem": wording.on_page(problem), "leads": _leads(visit, problem)}
        return await self._page(visit, View("problem.html", shown, status))

    async def _page(self, visit: Visit, view: View) -> Response:
        text = self._templates.get_template(view.template).render(
            **self._around(visit), **view.shown, namespaces=await _namespaces(visit)
        )
        answer = HTMLResponse(text, view.status)
        forms.remember(visit.request, answer)
        return answer

    def _part(self, visit: Visit, view: View) -> str:
        """The part of a page that can change."""
        template = self._templates.get_template(view.template)
        context = template.new_context({**self._around(visit), **view.shown})
        return "".join(template.blocks["live"](context))

    def _around(self, visit: Visit) -> dict[str, Any]:
        theme = visit.request.cookies.get("kagzi_theme", "")
        return {
            "visit": visit,
            "link": visit.link,
            "theme": theme if theme in _THEMES else "",
            "form_token": forms.token(visit.request),
            "navigation": NAVIGATION,
            "signed_in": of_person(visit.request) is not None,
        }


def _leads(visit: Visit, problem: Problem) -> list[tuple[str, str]]:
    """Where to go on from a problem: addresses and what they are."""
    if problem.field == "namespace":
        return [("/namespaces", "Choose another namespace"), ("/", "Go to the overview")]
    leads = []
    if "run_id" in visit.request.path_params and problem.code == "NOT_FOUND" and problem.field in {"", "run_id"}:
        given = visit.request.path_params["run_id"]
        leads.append((visit.link("/runs", q=given), "Look for a run that its caller named so"))
    section = next((each for each in NAVIGATION[1:] if visit.path.startswith(each[0])), None)
    if section is not None:
        leads.append(
            (visit.link(section[0]), f"See all {section[1].lower()}" if section[1] != "API" else "See the API")
        )
    return [*leads, (visit.link("/"), "Go to the overview")]


def _nothing_there(visit: Visit, problem: Problem) -> str:
    if problem.field not in {"run_id", "worker_id"}:
        return problem.detail
    noun = problem.field.removesuffix("_id")
    given = visit.request.path_params[problem.field]
    return f"There is no {noun} {given!r}: the id of a {noun} is a UUID of 36 characters."


def _sign_in(request: Request) -> Response:
    return RedirectResponse(f"/signin?{_back(request)}", 303)


def _back(request: Request) -> str:
    """Where to go on after signing in; a form is filled in again."""
    query = f"?{request.url.query}" if request.url.query else ""
    return f"to={part(request.url.path + query)}" if request.method == "GET" else ""


async def _namespaces(visit: Visit) -> list[str]:
    """The namespaces to choose from; a page is shown also where these cannot be had."""
    try:
        told = await visit.ask("NamespaceService.ListNamespaces", page_size=100)
    except ServerError:
        return [visit.namespace]
    return sorted({visit.namespace, *(each["name"] for each in told["namespaces"])})


def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("kagzi.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("tone", "plain", "sentence", "length", "clock", "count", "pretty", "short"):
        made.filters[name] = getattr(words, name)
    made.filters["part"] = part
    # Jinja calls it length, which here is one of time.
    made.filters["size"] = len
    made.globals["asset"] = asset
    made.globals["took"] = words.took
    made.globals["new_id"] = forms.new_id
    for name in ("parts", "drawn"):
        made.globals["ui" if name == "parts" else name] = made.get_template(f"{name}.html").module
    return made


@cache
def asset(name: str) -> str:
    """The address of a static file, which changes with its content: browsers may keep it for ever."""
    data = files("kagzi.dashboard").joinpath("static", name).read_bytes()
    return f"/static/{name}?{hashlib.sha256(data).hexdigest()[:10]}"
