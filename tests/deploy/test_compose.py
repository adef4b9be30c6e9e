"""The compose file: who waits for whom, what is reachable, and where it is built."""

from __future__ import annotations

from kagzi.server.settings import Settings
from tests.deploy.manifests import DEPLOY, compose, documents
from tests.house.tree import ROOT

DEFAULT = Settings.model_fields


def test_who_is_waited_for_says_when_it_is_ready() -> None:
    services = compose()
    waits = {
        (name, other): how["condition"]
        for name, service in services.items()
        for other, how in service.get("depends_on", {}).items()
    }
    assert waits == {
        ("migrate", "postgres"): "service_healthy",
        ("server", "migrate"): "service_completed_successfully",
        ("worker", "server"): "service_healthy",
    }
    assert all("healthcheck" in services[other] for (_, other), how in waits.items() if how == "service_healthy")
    assert "restart" not in services["migrate"]


def test_what_is_published_listens_and_is_reached_from_this_machine_alone() -> None:
    inside = {DEFAULT["server_port"].default, DEFAULT["http_port"].default}
    published = [port for service in compose().values() for port in service.get("ports", [])]
    assert {tuple(port.split(":")) for port in published} == {("127.0.0.1", str(port), str(port)) for port in inside}
    assert compose()["worker"]["environment"]["KAGZI_URL"] == f"server:{DEFAULT['server_port'].default}"


def test_what_is_built_and_mounted_is_there() -> None:
    services = compose()
    for service in services.values():
        if "build" in service:
            context = (DEPLOY / service["build"]["context"]).resolve()
            assert context == ROOT
            assert (context / service["build"]["dockerfile"]).is_file()
    [mounted] = services["worker"]["volumes"]
    source, target, mode = mounted.split(":")
    assert mode == "ro"
    module = services["worker"]["command"][1]
    assert ((DEPLOY / source).resolve() / module.removeprefix(f"{target}/")).is_file()
    [document] = documents(DEPLOY / "compose.yaml")
    assert set(document["volumes"]) == {services["postgres"]["volumes"][0].partition(":")[0]}
