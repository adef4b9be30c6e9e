"""The server's settings: flags, then `KAGZI_…` variables, then a TOML file, then defaults. All are checked
at start, and an error names the setting as its user wrote it. A setting never changes while the server
runs, and the database's address never appears in an error or a log.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, FilePath, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from kagzi.server.logs import Format, Level

PREFIX = "KAGZI_"
_CONFIG = "KAGZI_CONFIG"
# Before the scheduler and the watchdog became one coordinator.
_RENAMED = {
    "KAGZI_SCHEDULER_INTERVAL_SECS": "KAGZI_COORDINATOR_INTERVAL_SECS",
    "KAGZI_SCHEDULER_BATCH_SIZE": "KAGZI_COORDINATOR_BATCH_SIZE",
    "KAGZI_WATCHDOG_INTERVAL_SECS": "KAGZI_COORDINATOR_INTERVAL_SECS",
    "KAGZI_WATCHDOG_WORKER_STALE_THRESHOLD_SECS": "KAGZI_COORDINATOR_WORKER_STALE_THRESHOLD_SECS",
}
_DAY = 86_400.0


class SettingsError(Exception):
    """A setting cannot be used; the message names it and says what to do."""


class Settings(BaseSettings):
    """What a server is told. Field `server_port` is the variable `KAGZI_SERVER_PORT` and `port` under
    `[server]`.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    # Absent: an embedded PostgreSQL in data_dir.
    db_url: str | None = Field(default=None, repr=False)
    # Absent: db_url. A pooler cannot carry LISTEN; this names the database behind it.
    db_listen_url: str | None = Field(default=None, repr=False)
    db_pool_size: int = Field(default=8, ge=2, le=500)
    # 0 behind a pooler that shares connections between transactions.
    db_statement_cache_size: int = Field(default=512, ge=0, le=10_000)
    data_dir: Path = Path(".kagzi")

    server_host: str = "127.0.0.1"
    server_port: int = Field(default=50051, ge=0, le=65_535)
    server_insecure: bool = False
    # The certificate that gRPC and HTTP show, with the chain to its authority, and its key; both in PEM.
    server_tls_cert: FilePath | None = None
    server_tls_key: FilePath | None = None
    # Who signs the certificates that callers must show; absent: they need none.
    server_tls_client_ca: FilePath | None = None
    # Absent: where something listens beyond loopback.
    server_require_keys: bool | None = None
    # The operator's own key, which opens every namespace and stands in no database. Absent: there is none.
    admin_key: str | None = Field(default=None, min_length=32, max_length=1_000, pattern=r"^[!-~]+$", repr=False)
    server_reflection: bool = False
    server_drain_timeout_secs: float = Field(default=6.0, ge=0, le=3_600)
    http_host: str = "127.0.0.1"
    http_port: int = Field(default=8080, ge=0, le=65_535)
    # Names that browsers reach the dashboard by, separated by commas, besides addresses and localhost.
    http_allowed_hosts: str = ""
    # Who signs the certificates that browsers must show; absent: they need none.
    http_tls_client_ca: FilePath | None = None

    worker_visibility_timeout_secs: float = Field(default=30.0, ge=0.3, le=_DAY)
    # Absent: 10 s, or a third of a shorter lease.
    worker_heartbeat_interval_secs: float | None = Field(default=None, gt=0, le=_DAY)
    coordinator_interval_secs: float = Field(default=5.0, ge=0.05, le=3_600)
    coordinator_batch_size: int = Field(default=100, ge=1, le=10_000)
    coordinator_worker_stale_threshold_secs: float = Field(default=30.0, ge=0.3, le=_DAY)

    # For runs under way; those that begin have one besides. Each lane has one commit under way. More lanes make smaller
    # commits.
    batcher_lanes: int = Field(default=1, ge=1, le=64)
    # For handler runs of automations, whose commits take several statements each: while the server computes for one the
    # database works for another.
    batcher_handler_lanes: int = Field(default=2, ge=1, le=64)
    batcher_batch_operations: int = Field(default=1_000, ge=1, le=10_000)
    batcher_queue_operations: int = Field(default=20_000, ge=1, le=10_000_000)
    batcher_queue_bytes: int = Field(default=64 * 1024 * 1024, ge=4 * 1024 * 1024)
    # How long a call waits for room before it is told to come back later.
    batcher_patience_secs: float = Field(default=5.0, ge=0, le=60)
    # How soon a due run is found when every notice of it was lost.
    dispatcher_interval_secs: float = Field(default=1.0, ge=0.05, le=60)

    # How soon, and how late, a consumer can ask to be woken.
    automation_wake_min_secs: float = Field(default=30.0, ge=0, le=_DAY)
    automation_wake_max_secs: float = Field(default=_DAY, ge=1, le=366 * _DAY)

    # How long ended runs are kept where their namespace says nothing; 0: for ever.
    retention_runs_secs: float = Field(default=30 * _DAY, ge=0, le=3_660 * _DAY)
    # The same for events, counted from when the last consumer was done with them or they were last published.
    retention_events_secs: float = Field(default=30 * _DAY, ge=0, le=3_660 * _DAY)
    retention_workers_secs: float = Field(default=_DAY, ge=60, le=3_660 * _DAY)
    retention_stats_secs: float = Field(default=14 * _DAY, ge=3_600, le=3_660 * _DAY)
    limit_history_steps: int = Field(default=20_000, ge=1, le=20_000)
    limit_history_bytes: int = Field(default=50_000_000, ge=1)

    timezone: str = "UTC"
    log_format: Format = "json"
    log_level: Level = "info"

    @field_validator("db_url", "db_listen_url")
    @classmethod
    def _is_postgres(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("postgresql://", "postgres://")):
            raise ValueError("must begin with postgresql://")
        return value if value is None else _to_the_primary(value)

    @field_validator("timezone")
    @classmethod
    def _is_known_zone(cls, value: str) -> str:
        try:
            return ZoneInfo(value).key
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError("is no IANA time zone, as Europe/Berlin") from None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        lease, heartbeat = self.lease_secs, self.heartbeat_secs
        if heartbeat >= lease / 2:
            raise _Unfit(
                "worker_heartbeat_interval_secs",
                f"is {heartbeat:g}, and must be less than half of worker_visibility_timeout_secs, {lease:g}",
            )
        if self.coordinator_worker_stale_threshold_secs <= heartbeat:
            raise _Unfit(
                "coordinator_worker_stale_threshold_secs",
                f"must be more than the interval of heartbeats, {heartbeat:g} s, or all workers look silent",
            )
        if self.automation_wake_max_secs < self.automation_wake_min_secs:
            raise _Unfit("automation_wake_max_secs", "is less than automation_wake_min_secs")
        self._fits_the_network()
        return self

    def _fits_the_network(self) -> None:
        if (self.server_tls_cert is None) != (self.server_tls_key is None):
            missing = "server_tls_key" if self.server_tls_key is None else "server_tls_cert"
            raise _Unfit(missing, "is missing: a certificate and its key are set together")
        for name in ("server_tls_client_ca", "http_tls_client_ca"):
            if getattr(self, name) is not None and not self.tls:
                raise _Unfit(name, "asks callers for certificates, which takes one of our own (server_tls_cert)")
        lacking = [what for what, there in (("TLS", self.tls), ("keys", self.keys_required)) if not there]
        for name in ("server_host", "http_host"):
            if lacking and not self.server_insecure and not _is_loopback(getattr(self, name)):
                raise _Unfit(
                    name,
                    f"is not loopback, and what listens there has no {' and no '.join(lacking)}. Use 127.0.0.1, set "
                    "KAGZI_SERVER_TLS_CERT and KAGZI_SERVER_TLS_KEY and leave keys required, or say --insecure "
                    "(KAGZI_SERVER_INSECURE=true) if the network is yours alone",
                )

    @property
    def tls(self) -> bool:
        """Whether it listens with TLS."""
        return self.server_tls_cert is not None

    @property
    def keys_required(self) -> bool:
        """Whether every call must show a key: unless told, where something listens beyond loopback."""
        if self.server_require_keys is not None:
            return self.server_require_keys
        beyond = not (_is_loopback(self.server_host) and _is_loopback(self.http_host))
        return beyond and not self.server_insecure

    @property
    def web_port(self) -> int:
        """Where pages and the HTTP API are: unless told, any free port where the server takes any free one too."""
        chosen = "http_port" in self.model_fields_set or self.server_port != 0
        return self.http_port if chosen else 0

    @property
    def lease_secs(self) -> float:
        """How long a lease lasts."""
        return self.worker_visibility_timeout_secs

    @property
    def heartbeat_secs(self) -> float:
        """How often a worker is to be heard of."""
        return self.worker_heartbeat_interval_secs or min(10.0, self.lease_secs / 3)


class _Unfit(ValueError):
    """A value that is fine alone and does not fit another."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    config: str | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings of this process. `flags` are fields by name, those that are None left out; `config` is the
    path of the TOML file, `KAGZI_CONFIG` when it is None; `defaults` are a command's own.
    """
    _refuse_misspelt()
    path = config or os.environ.get(_CONFIG) or None
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    filed = {} if path is None else _read(Path(path))
    below = {**(defaults or {}), **filed}
    lower = {name: value for name, value in below.items() if not os.environ.get(_variable(name))}
    try:
        return Settings(**{**lower, **given})
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        cause = problem.get("ctx", {}).get("error")
        name = cause.field if isinstance(cause, _Unfit) else str(problem["loc"][0])
        message = problem["msg"].removeprefix("Value error, ")
        raise SettingsError(f"{_written(name, given, filed, path)}: {message}") from None


def _written(name: str, given: Mapping[str, Any], filed: Mapping[str, Any], path: str | None) -> str:
    """The setting as its user wrote it, or as it would be written."""
    if name in given:
        return "--" + name.removeprefix("server_").replace("_", "-")
    if name in filed and not os.environ.get(_variable(name)):
        return f"{name} in {path}"
    return _variable(name)


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _refuse_misspelt() -> None:
    """Old names, and names a letter away from a setting: what was meant would be ignored in silence."""
    known = [_variable(name) for name in Settings.model_fields]
    for variable in sorted(os.environ):
        if variable in _RENAMED:
            raise SettingsError(f"{variable} is now {_RENAMED[variable]}: rename it")
        if variable.startswith(("KAGZI_SCHEDULER_", "KAGZI_WATCHDOG_")):
            prefix = "KAGZI_COORDINATOR_"
            raise SettingsError(f"{variable} is gone: scheduler and watchdog are the coordinator, see {prefix}…")
        if variable.startswith(PREFIX) and variable not in known:
            close = get_close_matches(variable, known, n=1, cutoff=0.92)
            if close:
                raise SettingsError(f"{variable} is no setting: did you mean {close[0]}?")


def _read(path: Path) -> dict[str, Any]:
    """The file's tables, flattened: `port` under `[server]` is `server_port`."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"the settings file {path} cannot be read: {error}") from None
    flat = _flattened(document)
    for name in flat:
        if name not in Settings.model_fields:
            close = get_close_matches(name, Settings.model_fields, n=1)
            hint = f": did you mean {close[0]}?" if close else ""
            raise SettingsError(f"{name} in {path} is no setting{hint}")
    return flat


def _flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= _flattened(value, f"{prefix}{name}_") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _to_the_primary(url: str) -> str:
    """Of several hosts the one that takes writes is meant, wherever it is by now; unless the address says otherwise."""
    where = urlsplit(url)
    asked = parse_qs(where.query)
    several = "," in where.netloc or any("," in host for host in asked.get("host", ()))
    if not several or "target_session_attrs" in asked:
        return url
    return f"{url}{'&' if where.query else '?'}target_session_attrs=primary"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
