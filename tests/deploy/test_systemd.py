"""The units for systemd: known words alone, and files where they are looked for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.manifests import DEPLOY, environment, unit

UNITS = ["kagzi.service", "kagzi-worker@.service"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_unit(name: str, tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / name).read_text(encoding="utf-8")
    installed = text.replace("/opt/kagzi/bin/kagzi", sys.executable)
    assert installed != text
    (tmp_path / name).write_text(installed, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / name)], capture_output=True, text=True, timeout=60, check=False
    )
    said = [line for line in done.stderr.splitlines() if "kagzi" in line]
    assert (done.returncode, said) == (0, [])


def test_the_certificate_is_read_where_systemd_puts_it() -> None:
    said = unit("kagzi.service")
    put = {line.partition(":")[0] for line in said["LoadCredential"]}
    told = environment(said)
    assert {told["KAGZI_SERVER_TLS_CERT"], told["KAGZI_SERVER_TLS_KEY"]} == {f"%d/{name}" for name in put}


@pytest.mark.parametrize("name", UNITS)
def test_secrets_stand_in_a_file_that_root_alone_reads(name: str) -> None:
    said = unit(name)
    assert said["EnvironmentFile"][0].startswith("/etc/kagzi/")
    assert said["DynamicUser"] == ["yes"]
    assert not {"KAGZI_DB_URL", "KAGZI_API_KEY", "KAGZI_ADMIN_KEY"} & set(environment(said))
