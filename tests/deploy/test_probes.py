"""A server started with what the files give it answers the questions that the files ask it."""

from __future__ import annotations

import signal
import ssl
import subprocess
import sys
from pathlib import Path

import httpx

from tests.conformance.servers import ServerProcess
from tests.deploy.manifests import compose, kubernetes, pods
from tests.security.authority import Authority

# Tests listen on loopback alone, and on ports that are free.
HERE = {"server_host": "127.0.0.1", "http_host": "127.0.0.1", "server_port": 0, "http_port": 0}


def given(variables: dict[str, str]) -> dict[str, object]:
    return {name.removeprefix("KAGZI_").lower(): value for name, value in variables.items() if "DB_URL" not in name}


def site(directory: Path) -> str:
    """Where a started server's pages are."""
    return (directory / "server.out").read_text(encoding="utf-8").split("dashboard: ")[1].split()[0]


def test_a_server_of_the_manifests_passes_their_probes(database_url: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    shown = authority.sign("server")
    settings = given(kubernetes()["ConfigMap", "kagzi-server"]["data"]) | HERE
    settings |= {"server_tls_cert": shown.cert, "server_tls_key": shown.key, "server_require_keys": True}
    [container] = pods()["kagzi-server"]["containers"]
    trust = ssl.create_default_context(cafile=authority.cert)
    with ServerProcess(database_url, tmp_path / "server", **settings) as server:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = container[probe]["httpGet"]
            address = site(tmp_path / "server")
            assert address.startswith(f"{asked['scheme'].lower()}://127.0.0.1:")
            # The kubelet names the pod's own address.
            assert httpx.get(address + asked["path"], verify=trust, timeout=30).status_code == 200, probe
        server.send(signal.SIGTERM)
        assert server.wait(30) == 0


def test_a_server_of_the_compose_file_passes_its_health_check(database_url: str, tmp_path: Path) -> None:
    settings = given(compose()["server"]["environment"]) | HERE
    program, *words, code = compose()["server"]["healthcheck"]["test"][1:]
    assert program == "python"
    with ServerProcess(database_url, tmp_path / "server", **settings):
        port = site(tmp_path / "server").rpartition(":")[2]
        asked = code.replace(":8080/", f":{port}/")
        assert asked != code
        subprocess.run([sys.executable, *words, asked], timeout=60, check=True)
    # Nobody answers any more, and the check says so.
    silent = subprocess.run([sys.executable, *words, asked], timeout=60, check=False, stderr=subprocess.DEVNULL)
    assert silent.returncode != 0
