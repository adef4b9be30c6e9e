"""The manifests for Kubernetes: everything that one object names of another is there, pods take no rights they do not
need, and what the tool renders is what we read.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml

from kagzi.server.settings import Settings
from tests.deploy.manifests import DEPLOY, documents, kubernetes, pods

# What users make themselves, with the entries that are read of it.
SECRETS = {
    "kagzi-owner": {"KAGZI_DB_URL"},
    "kagzi-server": {"KAGZI_DB_URL"},
    "kagzi-tls": {"tls.crt", "tls.key", "ca.crt"},
    "shop-worker": {"KAGZI_API_KEY"},
}
PORTS = {"grpc": Settings.model_fields["server_port"].default, "https": Settings.model_fields["http_port"].default}


def containers() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(pod, container) for pod in pods().values() for container in pod["containers"]]


def named(pod: dict[str, Any], container: dict[str, Any]) -> set[tuple[str, str]]:
    """The config maps and secrets of a container."""
    sources = container.get("envFrom", [])
    found = {("ConfigMap", each["configMapRef"]["name"]) for each in sources if "configMapRef" in each}
    found |= {("Secret", each["secretRef"]["name"]) for each in sources if "secretRef" in each}
    for variable in container.get("env", []):
        reference = variable["valueFrom"]["secretKeyRef"]
        assert reference["key"] in SECRETS[reference["name"]]
        found.add(("Secret", reference["name"]))
    found |= {("Secret", volume["secret"]["secretName"]) for volume in pod.get("volumes", []) if "secret" in volume}
    return found


def test_every_file_is_in_the_kustomization() -> None:
    folder = DEPLOY / "kubernetes"
    [root] = documents(folder / "kustomization.yaml")
    assert sorted([*root["resources"], "kustomization.yaml"]) == sorted(path.name for path in folder.iterdir())


def test_what_a_container_names_exists() -> None:
    every = {("Secret", name) for name in SECRETS} | set(kubernetes())
    told = set()
    for pod, container in containers():
        told |= named(pod, container)
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        assert volumes == {mount["name"] for mount in container.get("volumeMounts", [])}
    assert told <= every
    assert {("Secret", name) for name in SECRETS} <= told


def test_the_files_that_settings_name_are_mounted() -> None:
    for maps, pod in (("kagzi-server", "kagzi-server"), ("kagzi-worker", "shop-worker")):
        [container] = pods()[pod]["containers"]
        mounted = {mount["mountPath"] for mount in container["volumeMounts"] if mount.get("readOnly")}
        told = kubernetes()["ConfigMap", maps]["data"].values()
        files = [PurePosixPath(value) for value in told if value.startswith("/")]
        assert files
        assert {str(file.parent) for file in files} <= mounted
        assert {file.name for file in files} <= SECRETS["kagzi-tls"]


def test_a_service_leads_to_ports_that_listen_on_pods_that_exist() -> None:
    service = kubernetes()["Service", "kagzi"]["spec"]
    template = kubernetes()["Deployment", "kagzi-server"]["spec"]["template"]
    assert service["selector"] == template["metadata"]["labels"]
    [container] = template["spec"]["containers"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == PORTS
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == PORTS
    [host, port] = kubernetes()["ConfigMap", "kagzi-worker"]["data"]["KAGZI_URL"].split(":")
    assert (host, int(port)) == ("kagzi", PORTS["grpc"])


@pytest.mark.parametrize("name", ["kagzi-server", "shop-worker"])
def test_a_deployment_selects_its_own_pods_and_replaces_before_it_removes(name: str) -> None:
    spec = kubernetes()["Deployment", name]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert spec["replicas"] > 1


def test_no_pod_gets_variables_of_services_or_rights_it_does_not_need() -> None:
    for pod, container in containers():
        # KAGZI_SERVER_PORT=tcp://… of a service named kagzi-server would stand for the setting.
        assert pod["enableServiceLinks"] is False
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="rendering takes kubectl")
def test_the_tool_renders_all_of_it() -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / "kubernetes")], capture_output=True, text=True, timeout=60, check=True
    )
    rendered = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)}
    assert set(rendered) == set(kubernetes())
    assert all(each["metadata"].get("namespace", "kagzi") == "kagzi" for each in rendered.values())
