"""API keys. The secret of a key names its namespace and its id, so that it is found by its primary key, and ends with
32 random bytes. It is shown to whoever makes it; the database has its SHA-256 alone. A key that was revoked stays
revoked, and its row stays to tell so.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, unquote
from uuid import UUID

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.store import namespaces
from kagzi.store.errors import conflict, not_found
from kagzi.store.queries import Queries

PREFIX = "kagzi_"
ROLES = ("reader", "client", "worker", "admin")
_SECRET_BYTES = 32
_KEY = ("namespace", "key_id", "name", "role", "secret_hash", "created_at", "revoked_at")
# The namespace as in an address, the id without dashes, the random bytes in base64.
_SECRET = re.compile(PREFIX + r"([\w.~%-]{1,765})\.([0-9a-f]{32})\.[\w-]{43}", re.ASCII)

_sql = Queries("keys.sql")
_create = _sql.bind("create")
_get = _sql.bind("get", columns=_KEY)
_list = _sql.bind("list", columns=_KEY)
_revoke = _sql.bind("revoke")
_valid = _sql.bind("valid", columns=("namespace", "key_id"))


@dataclass(frozen=True, slots=True)
class Key:
    """One key, without its secret."""

    namespace: str
    key_id: str
    name: str
    role: str
    created_at: datetime
    revoked_at: datetime | None

    @property
    def prefix(self) -> str:
        """What its secret begins with; all before the random bytes."""
        return _prefix(self.namespace, self.key_id)


def new_secret(namespace: str, key_id: str) -> str:
    """A secret that nobody has seen yet."""
    random = base64.urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)).decode().rstrip("=")
    return _prefix(namespace, key_id) + random


def named_by(secret: str) -> tuple[str, str] | None:
    """The namespace and id that a secret names; None when it is none of ours."""
    found = _SECRET.fullmatch(secret)
    if found is None:
        return None
    namespace = unquote(found[1])
    return (namespace, str(UUID(found[2]))) if "\0" not in namespace else None


def digest(secret: str) -> bytes:
    """What is stored of a secret. It is random through and through: nothing slower would guard it better."""
    return hashlib.sha256(secret.encode()).digest()


async def create(connection: Connection, namespace: str, key_id: str, secret: str, *, name: str, role: str) -> Key:
    """Makes a key; CONFLICT when its id is taken, unless by this very creation."""
    await namespaces.get(connection, namespace)
    hashed = digest(secret)
    made = await _create.execute(
        connection, namespace=namespace, key_id=key_id, name=name, role=role, secret_hash=hashed
    )
    row = await _get.first(connection, namespace=namespace, key_id=key_id)
    assert row is not None
    if not made and not hmac.compare_digest(row["secret_hash"], hashed):
        message = f"there is a key {key_id} already, and no secret is shown twice: revoke it and make another"
        raise conflict(message, key_id, "key_id")
    return _key(row)


async def opened_by(connection: Connection, secret: str) -> Key | None:
    """The key that a secret opens now; None when there is none, or it was revoked."""
    named = named_by(secret)
    if named is None:
        return None
    row = await _get.first(connection, namespace=named[0], key_id=named[1])
    if row is None or row["revoked_at"] is not None or not hmac.compare_digest(row["secret_hash"], digest(secret)):
        return None
    return _key(row)


async def list_page(
    connection: Connection, namespace: str, *, most: int, before: tuple[datetime, str] | None, revoked: bool
) -> list[Key]:
    """Keys, newest first, after the one with the time and id `before`; also those that were `revoked` if wanted."""
    await namespaces.get(connection, namespace)
    at, key_id = before or (None, None)
    found = await _list.fetch(
        connection, namespace=namespace, revoked=revoked, before_at=at, before_id=key_id, most=most
    )
    return [_key(row) for row in found]


async def revoke(connection: Connection, namespace: str, key_id: str) -> Key:
    """Ends a key, and answers it; one that has ended stays as it is."""
    await namespaces.get(connection, namespace)
    await _revoke.execute(connection, namespace=namespace, key_id=key_id)
    row = await _get.first(connection, namespace=namespace, key_id=key_id)
    if row is None:
        raise not_found("key", key_id, "key_id")
    return _key(row)


async def valid(connection: Connection, asked: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Those of the keys, given by namespace and id, that are not revoked."""
    pairs = list(asked)
    found = await _valid.fetch(
        connection, namespaces=[namespace for namespace, _ in pairs], key_ids=[key_id for _, key_id in pairs]
    )
    return {(row["namespace"], str(row["key_id"])) for row in found}


def _prefix(namespace: str, key_id: str) -> str:
    return f"{PREFIX}{quote(namespace, safe='')}.{UUID(key_id).hex}."


def _key(row: Record) -> Key:
    return Key(
        namespace=row["namespace"],
        key_id=str(row["key_id"]),
        name=row["name"],
        role=row["role"],
        created_at=row["created_at"],
        revoked_at=row["revoked_at"],
    )
