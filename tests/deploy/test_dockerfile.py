"""The Dockerfile: what it copies is there, nothing else gets into the build, and it runs as nobody in particular.
`make test-image` plays its steps.
"""

from __future__ import annotations

import tomllib

from kagzi.server.settings import Settings
from tests.deploy.manifests import DEPLOY, copied, dockerfile, pods
from tests.house.tree import ROOT


def test_what_is_copied_is_there_and_let_into_the_build() -> None:
    build = dockerfile()[0]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[0] == "*"
    for step in build.values("COPY"):
        for source in copied(step)[0]:
            assert (ROOT / source).exists()
            assert f"!{source}" in ignored


def test_the_build_has_all_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sources = {source for step in dockerfile()[0].values("COPY") for source in copied(step)[0]}
    assert {project["readme"], *project["license-files"], "pyproject.toml", "constraints.txt", "src"} <= sources
    [install] = [step for step in dockerfile()[0].values("RUN") if "pip install" in step]
    assert "'.[server,tracing]'" in install
    assert {"server", "tracing"} <= set(project["optional-dependencies"])


def test_the_image_has_what_was_built_where_it_was_built() -> None:
    build, image = dockerfile()
    [prefix] = [value.removeprefix("PREFIX=") for value in build.values("ARG")]
    [taken] = image.values("COPY")
    assert copied(taken) == ([prefix], prefix)
    assert build.image.removesuffix(" AS build") == image.image
    assert image.values("ENV")[0].startswith(f"PATH={prefix}/bin:$PATH")


def test_the_image_runs_without_rights_and_names_its_ports() -> None:
    image = dockerfile()[1]
    [user] = image.values("USER")
    security = pods()["kagzi-server"]["securityContext"]
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}"
    ports = [Settings.model_fields[name].default for name in ("server_port", "http_port")]
    assert image.values("EXPOSE") == [" ".join(map(str, ports))]
