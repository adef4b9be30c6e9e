"""The files of `deploy/`, read as those who use them read them."""

from __future__ import annotations

import json
import re
import shlex
from configparser import RawConfigParser
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.house.tree import ROOT

DEPLOY = ROOT / "deploy"
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0}


def documents(path: Path) -> list[dict[str, Any]]:
    """What a YAML file holds."""
    with path.open(encoding="utf-8") as file:
        return [document for document in yaml.safe_load_all(file) if document]


def kubernetes() -> dict[tuple[str, str], dict[str, Any]]:
    """Every object of the manifests, by kind and name."""
    folder = DEPLOY / "kubernetes"
    [root] = documents(folder / "kustomization.yaml")
    found = [document for name in root["resources"] for document in documents(folder / name)]
    return {(document["kind"], document["metadata"]["name"]): document for document in found}


def pods() -> dict[str, dict[str, Any]]:
    """The pods that the manifests ask for, by what asks."""
    return {
        name: document["spec"]["template"]["spec"]
        for (kind, name), document in kubernetes().items()
        if kind in ("Deployment", "Job")
    }


def compose() -> dict[str, dict[str, Any]]:
    """The services of the compose file."""
    [document] = documents(DEPLOY / "compose.yaml")
    services: dict[str, dict[str, Any]] = document["services"]
    return services


def unit(name: str) -> dict[str, list[str]]:
    """What a unit's [Service] says; a word may come several times."""
    text = (DEPLOY / "systemd" / name).read_text(encoding="utf-8")
    RawConfigParser(strict=False).read_string(text)
    section = text.partition("[Service]")[2].partition("[Install]")[0]
    said: dict[str, list[str]] = {}
    for line in section.splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            said.setdefault(key, []).append(value)
    return said


def environment(said: dict[str, list[str]]) -> dict[str, str]:
    """The variables that a unit sets."""
    return {name: value for line in said["Environment"] for name, _, value in [line.partition("=")]}


def seconds(text: str) -> float:
    """A duration as compose and units write it; a bare number is of seconds."""
    [(number, scale)] = re.findall(r"^([\d.]+)(ms|s|m|h|)$", text)
    return float(number) * SECONDS[scale or "s"]


@dataclass(slots=True)
class Stage:
    """One FROM of a Dockerfile and what follows it."""

    image: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def values(self, word: str) -> list[str]:
        return [value for key, value in self.steps if key == word]

    def last(self, word: str) -> list[str]:
        """The list in the last step of this name, as in CMD."""
        found: list[str] = json.loads(self.values(word)[-1])
        return found


def dockerfile() -> list[Stage]:
    """The stages of the Dockerfile."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n\s*", "", "".join(line for line in text.splitlines(True) if not line.startswith("#")))
    stages: list[Stage] = []
    for line in filter(None, lines.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stages.append(Stage(rest))
        else:
            stages[-1].steps.append((word, rest))
    return stages


def copied(step: str) -> tuple[list[str], str]:
    """What a COPY takes and where to."""
    *sources, target = [word for word in shlex.split(step) if not word.startswith("--")]
    return sources, target
