"""Versions agree with each other: pins, floors, and what the generated code demands of its runtime."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.house.tree import ROOT, SOURCE

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
GENERATED = SOURCE / "protocol" / "v1"


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [re.fullmatch(r"([\w.-]+)==([\w.]+)", line) for line in lines if line and not line.startswith("#")]
    assert None not in found, "constraints.txt holds `name==version` and comments, nothing else"
    return {canonicalize_name(pin[1]): Version(pin[2]) for pin in found if pin}


def requirements() -> list[Requirement]:
    project = PROJECT["project"]
    extras = [line for extra in project["optional-dependencies"].values() for line in extra]
    every = [Requirement(line) for line in [*project["dependencies"], *extras, *PROJECT["build-system"]["requires"]]]
    return [requirement for requirement in every if requirement.name != "kagzi"]


def floor(name: str) -> Version:
    specifiers = next(found.specifier for found in requirements() if found.name == name)
    return max(Version(part.version) for part in specifiers if part.operator == ">=")


def test_every_dependency_is_pinned_within_its_range() -> None:
    pinned = pins()
    outside = [
        str(requirement)
        for requirement in requirements()
        if canonicalize_name(requirement.name) not in pinned
        or pinned[canonicalize_name(requirement.name)] not in requirement.specifier
    ]
    assert outside == []


def test_the_floor_of_grpcio_is_what_the_generated_stubs_demand() -> None:
    texts = [path.read_text(encoding="utf-8") for path in GENERATED.glob("*_pb2_grpc.py")]
    demanded = {Version(found[1]) for text in texts if (found := re.search(r"GENERATED_VERSION = '(.+?)'", text))}
    assert demanded == {floor("grpcio")}


def test_the_floor_of_protobuf_is_what_the_generated_messages_demand() -> None:
    texts = [path.read_text(encoding="utf-8") for path in GENERATED.glob("*_pb2.py")]
    demanded = {Version(found[1]) for text in texts if (found := re.search(r"Python Version: (\S+)", text))}
    assert demanded == {floor("protobuf")}
