"""Every word of the manifests and of the compose file is one that its reader knows, in the place where it knows it:
Kubernetes and Compose pass over a misspelt one in silence, or refuse the whole file when it is too late.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from tests.deploy.manifests import DEPLOY, documents, kubernetes

# What a place may hold: words with what follows them; a list means many of it, None anything, "*" any name.
Form = dict[str, Any] | list[Any] | None
META: Form = {"name": None, "labels": {"*": None}, "annotations": {"*": None}, "namespace": None}
LABELS: Form = {"matchLabels": {"*": None}}
PROBE: Form = {
    "httpGet": {"path": None, "port": None, "scheme": None},
    "initialDelaySeconds": None,
    "periodSeconds": None,
    "timeoutSeconds": None,
    "failureThreshold": None,
    "successThreshold": None,
}
QUANTITIES: Form = {"cpu": None, "memory": None}
CONTAINER: Form = {
    "name": None,
    "image": None,
    "args": [None],
    "ports": [{"name": None, "containerPort": None}],
    "env": [{"name": None, "value": None, "valueFrom": {"secretKeyRef": {"name": None, "key": None}}}],
    "envFrom": [{"configMapRef": {"name": None}, "secretRef": {"name": None}}],
    "startupProbe": PROBE,
    "livenessProbe": PROBE,
    "readinessProbe": PROBE,
    "lifecycle": {"preStop": {"exec": {"command": [None]}}},
    "resources": {"requests": QUANTITIES, "limits": QUANTITIES},
    "securityContext": {
        "allowPrivilegeEscalation": None,
        "readOnlyRootFilesystem": None,
        "capabilities": {"drop": [None], "add": [None]},
    },
    "volumeMounts": [{"name": None, "mountPath": None, "readOnly": None, "subPath": None}],
}
POD: Form = {
    "restartPolicy": None,
    "enableServiceLinks": None,
    "automountServiceAccountToken": None,
    "terminationGracePeriodSeconds": None,
    "securityContext": {
        "runAsNonRoot": None,
        "runAsUser": None,
        "runAsGroup": None,
        "fsGroup": None,
        "seccompProfile": {"type": None},
    },
    "topologySpreadConstraints": [
        {"maxSkew": None, "topologyKey": None, "whenUnsatisfiable": None, "labelSelector": LABELS}
    ],
    "containers": [CONTAINER],
    "volumes": [
        {
            "name": None,
            "emptyDir": {"medium": None, "sizeLimit": None},
            "secret": {"secretName": None, "defaultMode": None, "items": [{"key": None, "path": None}]},
        }
    ],
}
TEMPLATE: Form = {"metadata": META, "spec": POD}
KINDS: dict[tuple[str, str], Form] = {
    ("v1", "Namespace"): {},
    ("v1", "ConfigMap"): {"data": {"*": None}},
    ("v1", "Service"): {
        "spec": {
            "selector": {"*": None},
            "ports": [{"name": None, "port": None, "targetPort": None, "appProtocol": None}],
        }
    },
    ("apps/v1", "Deployment"): {
        "spec": {
            "replicas": None,
            "strategy": {"type": None, "rollingUpdate": {"maxUnavailable": None, "maxSurge": None}},
            "selector": LABELS,
            "template": TEMPLATE,
        }
    },
    ("batch/v1", "Job"): {"spec": {"backoffLimit": None, "template": TEMPLATE}},
    ("policy/v1", "PodDisruptionBudget"): {"spec": {"minAvailable": None, "selector": LABELS}},
}
SERVICE: Form = {
    "image": None,
    "build": {"context": None, "dockerfile": None},
    "command": [None],
    "environment": {"*": None},
    "ports": [None],
    "volumes": [None],
    "healthcheck": {"test": [None], "interval": None, "timeout": None, "retries": None},
    "depends_on": {"*": {"condition": None}},
    "deploy": {"replicas": None},
    "stop_grace_period": None,
    "restart": None,
}
COMPOSE: Form = {"name": None, "services": {"*": SERVICE}, "volumes": {"*": None}}


def strange(value: Any, form: Form, path: str = "") -> Iterator[str]:
    """What stands where nobody reads it, or is no list or mapping where one is read."""
    if form is None:
        if isinstance(value, dict | list):
            yield f"{path} holds more than a value"
    elif isinstance(form, list):
        if not isinstance(value, list):
            yield f"{path} is no list"
            return
        for number, each in enumerate(value):
            yield from strange(each, form[0], f"{path}[{number}]")
    elif not isinstance(value, dict):
        # An empty mapping may be left out.
        if value is not None:
            yield f"{path} is no mapping"
    else:
        for name, each in value.items():
            if name not in form and "*" not in form:
                yield f"{path}.{name}"
            else:
                yield from strange(each, form.get(name, form.get("*")), f"{path}.{name}")


def misread(document: dict[str, Any]) -> list[str]:
    """What Kubernetes would not read of an object."""
    kind = KINDS[document["apiVersion"], document["kind"]]
    assert isinstance(kind, dict)
    return list(strange(document, {"apiVersion": None, "kind": None, "metadata": META, **kind}))


@pytest.mark.parametrize(("kind", "name"), kubernetes())
def test_kubernetes_knows_every_word(kind: str, name: str) -> None:
    assert misread(kubernetes()[kind, name]) == []


def test_compose_knows_every_word() -> None:
    [document] = documents(DEPLOY / "compose.yaml")
    assert list(strange(document, COMPOSE)) == []


def test_a_misspelt_word_is_found() -> None:
    server = deepcopy(kubernetes()["Deployment", "kagzi-server"])
    container = server["spec"]["template"]["spec"]["containers"][0]
    container["readinesProbe"] = container.pop("readinessProbe")
    container["resources"]["request"] = container["resources"].pop("requests")
    server["spec"]["template"]["enableServiceLinks"] = False
    container["args"] = "server"
    assert len(misread(server)) == 4
