"""Every route of the HTTP API and every page with no key, a wrong one, one of another namespace, and of each role; and
what keeps other sites from acting in a person's name.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import httpx
import pytest

from kagzi.dashboard.api.table import ROUTES, Route
from kagzi.dashboard.credentials import COOKIE
from kagzi.dashboard.pages import forms, routes
from kagzi.server.roles import ROLES, Role
from tests.conformance.execution import new_id
from tests.security.realm import ELSEWHERE, HOME, OPERATOR, Realm

REFUSED = {401, 403}


@pytest.fixture
def http(realm: Realm) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=realm.place.url, timeout=30) as client:
        yield client


def needed(route: Route) -> Role:
    return ROLES[f"/kagzi.v1.{route.rpc.replace('.', '/')}"]


def path(route: Route, namespace: str = HOME) -> str:
    """The route's address; ids are new, names that lead to a namespace are its."""
    own = "NamespaceService" in route.rpc and "{name" in route.path
    return "/api/v1" + re.sub(r"\{(\w+)(:path)?\}", lambda _: namespace if own else new_id(), route.path)


def ask(http: httpx.Client, route: Route, key: str | None, namespace: str = HOME) -> int:
    body = {"name": namespace} if route.rpc.endswith("CreateNamespace") else None
    headers = {"authorization": f"Bearer {key}"} if key else {}
    asked = {"namespace": namespace}
    return http.request(route.verb, path(route, namespace), params=asked, headers=headers, json=body).status_code


def test_without_a_valid_key_no_route_answers(realm: Realm, http: httpx.Client) -> None:
    wrong = []
    for route in ROUTES:
        for key in (None, "x", realm.keys[Role.ADMIN][:-1]):
            status = ask(http, route, key)
            if (needed(route) is Role.ANYBODY) != (status != 401):
                wrong.append((route.verb, route.path, key, status))
    assert wrong == []


def test_a_key_of_each_role_opens_what_the_table_says(realm: Realm, http: httpx.Client) -> None:
    wrong = []
    for route in ROUTES:
        for role, key in realm.keys.items():
            status = ask(http, route, key)
            if (status in REFUSED) != (role < needed(route)):
                wrong.append((route.verb, route.path, role, status))
    assert wrong == []


def test_no_route_leads_to_another_namespace(realm: Realm, http: httpx.Client) -> None:
    # These speak of no namespace.
    open_to_all = {"AdminService.HealthCheck", "AdminService.GetServerInfo", "NamespaceService.ListNamespaces"}
    key = realm.keys[Role.ADMIN]
    wrong = [
        (route.verb, route.path, status)
        for route in ROUTES
        if (status := ask(http, route, key, ELSEWHERE)) != 403 and route.rpc not in open_to_all
    ]
    assert wrong == []


def test_the_end_of_a_run_is_told_to_its_own_alone(realm: Realm, http: httpx.Client) -> None:
    address = f"/api/v1/runs/{new_id()}/result"
    assert http.get(address).status_code == 401
    reader = {"authorization": f"Bearer {realm.keys[Role.READER]}"}
    assert http.get(address, headers=reader, params={"namespace": ELSEWHERE}).status_code == 403
    assert http.get(address, headers=reader).status_code == 404


def test_the_api_takes_no_cookie(realm: Realm, http: httpx.Client) -> None:
    http.cookies.set(COOKIE, realm.keys[Role.ADMIN])
    assert http.get("/api/v1/runs").status_code == 401


def test_machines_may_ask_how_it_does_and_admins_what_it_counts(realm: Realm, http: httpx.Client) -> None:
    assert {http.get(address).status_code for address in ("/healthz", "/readyz")} == {200}
    assert http.get("/metrics").status_code == 401
    seen = {}
    for role in (Role.READER, Role.ADMIN):
        seen[role] = http.get("/metrics", headers={"authorization": f"Bearer {realm.keys[role]}"}).status_code
    assert seen[Role.READER] == 403
    assert seen[Role.ADMIN] not in REFUSED


def pages() -> list[str]:
    """Every page that shows something of a namespace."""
    return [re.sub(r"\{\w+(:path)?\}", HOME, each) for each in routes._LOOKS if each != "/signin"]


def test_every_page_asks_whoever_has_no_key_to_sign_in(http: httpx.Client) -> None:
    for address in pages():
        answer = http.get(address)
        assert (answer.status_code, answer.headers.get("location", "").split("?")[0]) == (303, "/signin"), address
    assert http.get("/signin").status_code == 200


def sign_in(http: httpx.Client, key: str) -> httpx.Response:
    http.get("/signin")
    token = http.cookies[forms.COOKIE]
    return http.post("/signin", data={"key": key, "to": "/", forms.FIELD: token})


def test_a_person_signs_in_looks_around_at_home_and_signs_out(realm: Realm, http: httpx.Client) -> None:
    assert sign_in(http, "x").headers["location"] == "/signin?wrong=1"
    answer = sign_in(http, realm.keys[Role.READER])
    assert answer.status_code == 303
    flags = [line.lower() for line in answer.headers.get_list("set-cookie") if line.startswith(COOKIE)]
    assert all("httponly" in line and "samesite=strict" in line for line in flags)
    assert flags
    for address in pages():
        answer = http.get(address)
        assert answer.status_code in {200, 400, 404}, (address, answer.status_code)
    assert f'<option value="{HOME}" selected' in http.get("/").text
    assert ELSEWHERE not in http.get("/namespaces").text
    http.post("/signout", data={forms.FIELD: http.cookies[forms.COOKIE]})
    assert http.get("/").status_code == 303


def test_signing_in_leads_to_the_address_that_was_asked_for_with_its_query(realm: Realm, http: httpx.Client) -> None:
    asked = f"/runs?namespace={HOME}&status=FAILED&label=customer%3D7%26more"
    there = http.get(asked)
    # Also after a key that was wrong.
    for key in ("x", realm.keys[Role.READER]):
        to = re.search(r'name="to" value="([^"]*)"', http.get(there.headers["location"]).text)
        assert to
        given = {"key": key, "to": html.unescape(to[1]), forms.FIELD: http.cookies[forms.COOKIE]}
        there = http.post("/signin", data=given)
    assert there.headers["location"] == asked
    assert http.get(asked).status_code == 200


def test_a_person_sees_no_other_namespace(realm: Realm, http: httpx.Client) -> None:
    sign_in(http, realm.keys[Role.ADMIN])
    for address in ("/", "/runs", "/workers"):
        assert http.get(address, params={"namespace": ELSEWHERE}).status_code == 403, address
    assert http.get(f"/namespaces/{ELSEWHERE}").status_code == 403


def acts() -> list[str]:
    return [re.sub(r"\{(\w+)(:path)?\}", HOME, each) for each in routes._ACTS]


def test_a_form_without_its_token_or_from_another_site_changes_nothing(realm: Realm, http: httpx.Client) -> None:
    sign_in(http, realm.keys[Role.ADMIN])
    token = http.cookies[forms.COOKIE]
    for address in acts():
        assert http.post(address, data={"name": "x"}).status_code in {401, 403}, address
        assert http.post(address, data={forms.FIELD: token[::-1]}).status_code in {401, 403}, address
        for header in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
            assert http.post(address, data={forms.FIELD: token}, headers=header).status_code == 403, address


def test_a_form_without_a_key_asks_to_sign_in(http: httpx.Client) -> None:
    http.get("/signin")
    token = http.cookies[forms.COOKIE]
    for address in acts():
        answer = http.post(address, data={forms.FIELD: token, "role": "ADMIN", "signal": "x", "input": "1"})
        # What is wrong with a form is said before anybody is asked; nothing is done.
        assert answer.status_code in {303, 400}, (address, answer.status_code)
        if answer.status_code == 303:
            assert answer.headers["location"].startswith("/signin"), address


def test_a_reader_is_told_that_a_form_needs_more(realm: Realm, http: httpx.Client) -> None:
    sign_in(http, realm.keys[Role.READER])
    answer = http.post(f"/namespaces/{HOME}/disable", data={forms.FIELD: http.cookies[forms.COOKIE]})
    assert (answer.status_code, "role admin" in answer.text) == (403, True)


def test_a_new_key_is_shown_in_the_answer_to_its_form_and_opens_the_door(realm: Realm, http: httpx.Client) -> None:
    sign_in(http, OPERATOR)
    data = {"name": "ci", "role": "CLIENT", forms.FIELD: http.cookies[forms.COOKIE]}
    shown = http.post(f"/namespaces/{HOME}/keys", data=data).text
    [secret] = set(re.findall(r"kagzi_shop\.[0-9a-f]{32}\.[\w-]{43}", shown))
    assert http.get("/api/v1/runs", headers={"authorization": f"Bearer {secret}"}).status_code == 200
