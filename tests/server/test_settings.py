"""Settings: where they come from, which wins, and errors that name them as their user wrote them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kagzi.server.settings import SettingsError, load


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("KAGZI_")]:
        monkeypatch.delenv(name)


def refused(flags: dict[str, Any] | None = None, config: Path | None = None) -> str:
    with pytest.raises(SettingsError) as error:
        load(flags, config=None if config is None else str(config))
    return str(error.value)


def test_the_defaults_are_those_of_the_documentation() -> None:
    settings = load()
    assert settings.db_url is None
    assert (settings.server_host, settings.server_port) == ("127.0.0.1", 50051)
    assert (settings.http_host, settings.http_port) == ("127.0.0.1", 8080)
    assert settings.coordinator_interval_secs == 5
    assert settings.coordinator_batch_size == 100
    assert settings.coordinator_worker_stale_threshold_secs == 30
    assert (settings.lease_secs, settings.heartbeat_secs) == (30, 10)


def test_flags_win_over_variables_and_those_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "kagzi.toml"
    config.write_text('log_level = "error"\n[server]\nport = 1\nhost = "127.0.0.2"\n[db]\npool_size = 3\n')
    monkeypatch.setenv("KAGZI_SERVER_PORT", "2")
    monkeypatch.setenv("KAGZI_SERVER_HOST", "127.0.0.3")
    settings = load({"server_port": 3, "server_host": None}, config=str(config), defaults={"log_level": "debug"})
    assert (settings.server_port, settings.server_host) == (3, "127.0.0.3")
    assert (settings.db_pool_size, settings.log_level) == (3, "error")


def test_a_server_on_any_free_port_serves_its_pages_on_any_free_port_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (load().web_port, load({"server_port": 0}).web_port) == (8080, 0)
    monkeypatch.setenv("KAGZI_HTTP_PORT", "8080")
    assert load({"server_port": 0}).web_port == 8080


def test_a_variable_names_the_file_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "kagzi.toml"
    config.write_text("server_port = 7\n")
    monkeypatch.setenv("KAGZI_CONFIG", str(config))
    assert load().server_port == 7


def test_the_defaults_of_a_command_yield_to_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = {"server_reflection": True, "log_format": "console"}
    monkeypatch.setenv("KAGZI_LOG_FORMAT", "json")
    settings = load(defaults=defaults)
    assert (settings.server_reflection, settings.log_format) == (True, "json")


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAGZI_DB_URL", "")
    assert load().db_url is None


def test_fractions_of_a_second_are_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAGZI_WORKER_VISIBILITY_TIMEOUT_SECS", "1.5")
    monkeypatch.setenv("KAGZI_WORKER_HEARTBEAT_INTERVAL_SECS", "0.25")
    assert (load().lease_secs, load().heartbeat_secs) == (1.5, 0.25)


def test_the_heartbeat_follows_a_short_lease_when_nobody_sets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAGZI_WORKER_VISIBILITY_TIMEOUT_SECS", "3")
    assert load().heartbeat_secs == 1


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KAGZI_SERVER_PORT", "65536"),
        ("KAGZI_SERVER_PORT", "tcp://10.0.0.1:50051"),
        ("KAGZI_COORDINATOR_INTERVAL_SECS", "0"),
        ("KAGZI_COORDINATOR_BATCH_SIZE", "many"),
        ("KAGZI_LOG_LEVEL", "loud"),
        ("KAGZI_TIMEZONE", "Mars/Olympus"),
        ("KAGZI_DB_URL", "mysql://me:hunter2@db/kagzi"),
        ("KAGZI_WORKER_HEARTBEAT_INTERVAL_SECS", "15"),
        ("KAGZI_WORKER_HEARTBEAT_INTERVAL_SECS", "0"),
        ("KAGZI_COORDINATOR_WORKER_STALE_THRESHOLD_SECS", "10"),
        ("KAGZI_SERVER_HOST", "0.0.0.0"),  # noqa: S104 - refused
        ("KAGZI_HTTP_HOST", "example.org"),
        ("KAGZI_RETENTION_RUNS_SECS", "-1"),
        ("KAGZI_RETENTION_EVENTS_SECS", "-1"),
        ("KAGZI_RETENTION_EVENTS_SECS", "forever"),
    ],
)
def test_a_bad_variable_is_refused_by_its_name_and_never_shown(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    message = refused()
    assert message.startswith(f"{variable}: ")
    assert "hunter2" not in message


def test_a_bad_flag_is_refused_as_a_flag() -> None:
    assert refused({"server_port": -1}).startswith("--port: ")
    assert refused({"log_level": "loud"}).startswith("--log-level: ")


def test_a_bad_file_is_refused_with_its_path(tmp_path: Path) -> None:
    config = tmp_path / "kagzi.toml"
    assert str(config) in refused(config=config)
    for text, said in (
        ("[server]\nport = 'x'\n", f"server_port in {config}: "),
        ("[server]\nprot = 1\n", "did you mean server_port?"),
        ("[server\n", str(config)),
    ):
        config.write_text(text)
        assert said in refused(config=config)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("KAGZI_SCHEDULER_INTERVAL_SECS", "KAGZI_COORDINATOR_INTERVAL_SECS"),
        ("KAGZI_SCHEDULER_BATCH_SIZE", "KAGZI_COORDINATOR_BATCH_SIZE"),
        ("KAGZI_WATCHDOG_INTERVAL_SECS", "KAGZI_COORDINATOR_INTERVAL_SECS"),
        ("KAGZI_WATCHDOG_WORKER_STALE_THRESHOLD_SECS", "KAGZI_COORDINATOR_WORKER_STALE_THRESHOLD_SECS"),
        ("KAGZI_WATCHDOG_ANYTHING", "KAGZI_COORDINATOR_"),
    ],
)
def test_a_name_of_the_old_split_is_refused_with_its_new_one(
    monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    monkeypatch.setenv(old, "1")
    message = refused()
    assert message.startswith(old)
    assert new in message


def test_a_misspelt_variable_is_not_ignored_and_a_foreign_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAGZI_URL", "localhost:50051")
    monkeypatch.setenv("KAGZI_API_KEY", "x")
    load()
    monkeypatch.setenv("KAGZI_SERVER_PROT", "1")
    assert "did you mean KAGZI_SERVER_PORT?" in refused()


def test_beyond_loopback_it_listens_only_when_told_aloud() -> None:
    assert "--insecure" in refused({"server_host": "192.0.2.1"})
    assert load({"server_host": "192.0.2.1", "server_insecure": True}).server_host == "192.0.2.1"
    for host in ("127.0.0.1", "localhost", "::1", "[::1]", "127.8.9.10"):
        assert load({"server_host": host}).server_host == host


def test_the_database_s_address_is_not_in_the_text_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAGZI_DB_URL", "postgresql://me:hunter2@db/kagzi")
    monkeypatch.setenv("KAGZI_DB_LISTEN_URL", "postgresql://me:hunter2@db/kagzi")
    assert "hunter2" not in repr(load())
    assert "hunter2" not in str(load())


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("postgresql://k@one/db", "postgresql://k@one/db"),
        ("postgresql://k@one,two:6000/db", "postgresql://k@one,two:6000/db?target_session_attrs=primary"),
        (
            "postgresql:///db?host=/a,/b&user=k",
            "postgresql:///db?host=/a,/b&user=k&target_session_attrs=primary",
        ),
        ("postgresql://k@one,two/db?target_session_attrs=any", "postgresql://k@one,two/db?target_session_attrs=any"),
    ],
)
def test_of_several_database_hosts_the_one_that_takes_writes_is_meant(given: str, used: str) -> None:
    assert load({"db_url": given}).db_url == used
    assert load({"db_listen_url": given}).db_listen_url == used
