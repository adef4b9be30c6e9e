"""`kagzi keys` as people use it: the first key from the database, others with it, and errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.protocol.v1.namespace_pb2 import GetNamespaceRequest
from tests.cli.test_cli import kagzi
from tests.security.realm import Realm


def test_the_first_key_is_made_on_the_database_and_makes_others(realm: Realm, tmp_path: Path) -> None:
    url = {"KAGZI_DB_URL": realm.place.database_url}
    first = kagzi("keys", "create", "--database", "--namespace", "new", "--role", "admin", cwd=tmp_path, **url)
    assert first.returncode == 0, first.stderr
    secret = first.stdout.strip()
    assert secret.startswith("kagzi_new.")
    assert "shown this once" in first.stderr

    with_it = {"KAGZI_URL": realm.place.server.address, "KAGZI_API_KEY": secret}
    made = kagzi("keys", "create", "--role", "reader", "--name", "ci", "--json", cwd=tmp_path, **with_it)
    told = json.loads(made.stdout)
    assert (told["namespace"], told["role"], told["name"]) == ("new", "reader", "ci")
    assert realm.refusal("NamespaceService/GetNamespace", GetNamespaceRequest(), told["secret"]) is None

    table = kagzi("keys", "list", cwd=tmp_path, **with_it).stdout
    assert told["key_id"] in table
    assert "ci" in table
    assert secret not in table

    ended = kagzi("keys", "revoke", told["key_id"], cwd=tmp_path, **with_it)
    assert ended.stdout == f"Revoked {told['key_id']}.\n"
    refused = realm.refusal("NamespaceService/GetNamespace", GetNamespaceRequest(), told["secret"])
    assert refused is not None
    assert refused.code == ErrorDetail.UNAUTHORIZED
    shown = json.loads(kagzi("keys", "list", "--revoked", "--json", cwd=tmp_path, **with_it).stdout)
    assert {key["key_id"]: key["revoked_at"] is not None for key in shown}[told["key_id"]]


@pytest.mark.parametrize(
    ("arguments", "variables", "said", "code"),
    [
        (["create", "--role", "king"], {}, "reader, client, worker, admin", 2),
        (["list"], {}, "asks for a key", 1),
        (["list"], {"KAGZI_API_KEY": "x"}, "opens nothing", 1),
        (["revoke", "x"], {"KAGZI_TLS_CA": "/absent"}, "KAGZI_TLS_CA", 2),
        (["list", "--url", "127.0.0.1:1"], {}, "127.0.0.1:1", 3),
        (["list", "--database"], {"KAGZI_DB_URL": "postgresql://me:hunter2@127.0.0.1:1/x"}, "KAGZI_DB_URL", 1),
    ],
    ids=["role", "no key", "wrong key", "no file", "no server", "no database"],
)
def test_what_is_wrong_is_said_in_one_line(
    realm: Realm, tmp_path: Path, arguments: list[str], variables: dict[str, str], said: str, code: int
) -> None:
    where = {"KAGZI_URL": realm.place.server.address, **variables}
    ended = kagzi("keys", *arguments, cwd=tmp_path, **where)
    assert ended.returncode == code, ended
    [line] = ended.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert "hunter2" not in line
