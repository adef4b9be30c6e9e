"""What the files of `deploy/` tell a server and a worker is what these read: known variables with good values, ports
where something listens, and more time to stop than stopping takes.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from kagzi import cli
from kagzi.cli.process import _CLOSING_SECS
from kagzi.sdk import duration
from kagzi.server.settings import Settings, load
from tests.deploy import manifests
from tests.deploy.manifests import compose, environment, kubernetes, pods, seconds, unit
from tests.docs.blocks import ROOT

# A server's, in the words of each file. Files in PEM need only be there.
TLS = ("KAGZI_SERVER_TLS_CERT", "KAGZI_SERVER_TLS_KEY")
SECRET = {"KAGZI_DB_URL": "postgresql://kagzi_server@database/kagzi"}
SERVERS: dict[str, dict[str, str]] = {
    "compose": compose()["server"]["environment"],
    "kubernetes": kubernetes()["ConfigMap", "kagzi-server"]["data"] | SECRET,
    "systemd": environment(unit("kagzi.service")) | SECRET,
}
WORKERS: dict[str, dict[str, str]] = {
    "compose": compose()["worker"]["environment"],
    "kubernetes": kubernetes()["ConfigMap", "kagzi-worker"]["data"],
    "systemd": environment(unit("kagzi-worker@.service")),
}


@pytest.fixture(params=SERVERS)
def settings(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Settings]:
    """The settings of a server that starts with what a file gives it."""
    given = dict(SERVERS[request.param])
    for name in TLS:
        if name in given:
            given[name] = str(tmp_path / Path(given[name]).name)
            Path(given[name]).write_text("PEM", encoding="utf-8")
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return request.param, load()


def test_a_server_takes_its_settings(settings: tuple[str, Settings]) -> None:
    name, made = settings
    known = {f"KAGZI_{field.upper()}" for field in Settings.model_fields}
    assert set(SERVERS[name]) <= known
    assert made.db_url is not None
    assert all(ip_address(host).is_unspecified for host in (made.server_host, made.http_host))
    assert made.tls != made.server_insecure
    assert made.keys_required == made.tls


def test_a_server_has_more_time_to_stop_than_it_takes(settings: tuple[str, Settings]) -> None:
    name, made = settings
    pod = pods()["kagzi-server"]
    [pause] = [float(each["lifecycle"]["preStop"]["exec"]["command"][1]) for each in pod["containers"]]
    granted = {
        "compose": seconds(compose()["server"]["stop_grace_period"]),
        "kubernetes": pod["terminationGracePeriodSeconds"] - pause,
        "systemd": seconds(unit("kagzi.service")["TimeoutStopSec"][0]),
    }
    assert granted[name] > made.server_drain_timeout_secs + _CLOSING_SECS


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_reads_its_variables_and_has_more_time_to_stop_than_it_drains(name: str) -> None:
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`(KAGZI_\w+)`", reference.partition("### Clients and workers")[2].partition("\n## ")[0]))
    assert set(WORKERS[name]) <= told
    granted = {
        "compose": seconds(compose()["worker"]["stop_grace_period"]),
        "kubernetes": pods()["shop-worker"]["terminationGracePeriodSeconds"],
        "systemd": seconds(unit("kagzi-worker@.service")["TimeoutStopSec"][0]),
    }
    drain = duration.parse(WORKERS[name]["KAGZI_DRAIN_TIMEOUT"])
    assert granted[name] >= drain.total_seconds() + 10


def test_what_is_run_are_commands() -> None:
    commands: dict[str, Any] = get_command(cli.app).commands  # type: ignore[attr-defined]  # the root is a group
    said = [each["command"][0] for each in compose().values() if "command" in each]
    said += [each["args"][0] for pod in pods().values() for each in pod["containers"]]
    for name in ("kagzi.service", "kagzi-worker@.service"):
        [line] = unit(name)["ExecStart"]
        assert line.startswith("/opt/kagzi/bin/kagzi ")
        said.append(line.split()[1])
    assert manifests.dockerfile()[-1].last("ENTRYPOINT") == ["kagzi"]
    said += manifests.dockerfile()[-1].last("CMD")
    assert set(said) == {"server", "worker", "migrate"}
    assert set(said) <= set(commands)


def test_processes_are_ended_by_the_signal_they_listen_to() -> None:
    assert manifests.dockerfile()[-1].values("STOPSIGNAL") == ["SIGTERM"]
    for name in ("kagzi.service", "kagzi-worker@.service"):
        assert unit(name)["KillSignal"] == ["SIGTERM"]
