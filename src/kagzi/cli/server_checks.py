"""What a doctor asks a server: whether it answers, which versions are in play, how its parts do, how the clocks stand,
and what waits for a person in each namespace.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any

from kagzi.cli.asking import Asking
from kagzi.cli.findings import Finding, act, note, skewed, unseen, well

_SKEW = timedelta(seconds=1)
_PATIENCE = 2.0
_NAMESPACES = 100
# What each kind of attention calls for, with the first of its subjects; and whether somebody has to do it.
_CALLS_FOR = {
    "UNKNOWN_STEPS": ("kagzi runs explain {}", True),
    "BLOCKED_AUTOMATIONS": ("kagzi automations show {}", True),
    "PARKED_RUNS": ("kagzi runs explain {}", True),
    "UNSERVED_RUNS": ("kagzi runs explain {}", True),
    "BROKEN_SCHEDULES": ("kagzi schedules show {}", True),
    "FAILED_RUNS": ("kagzi runs show {}", False),
    "SILENT_WORKERS": ("kagzi workers show {}", False),
}


def look(url: str | None) -> Iterator[Finding]:
    """Every check that needs a server; one finding after the other."""
    from kagzi.sdk.errors import KagziError, Unauthorized

    asked = Asking(url, None, patience=_PATIENCE)
    try:
        began = datetime.now(UTC)
        try:
            info = asked.call("AdminService.GetServerInfo")
        except Unauthorized as error:
            yield act(
                "server", f"{asked.target} does not let us in: {error}", "Set KAGZI_API_KEY to a key of the server."
            )
            return
        except KagziError as error:
            advice = "Start one (`kagzi dev`, `kagzi server`), or say where it is: --url or KAGZI_URL."
            yield act("server", str(error).partition(". ")[0], advice)
            return
        ended = datetime.now(UTC)
        yield well("server", f"{asked.target} answers within {(ended - began).total_seconds():.3f} s")
        yield _versions(info)
        yield _schema(info)
        yield _clock(info, began, ended)
        for check, judge in {"server parts": _parts, "namespaces": _attention}.items():
            try:
                yield from judge(asked)
            except KagziError as error:
                yield unseen(check, f"it could not be looked at: {error}")
    finally:
        asked.close()


def _versions(info: dict[str, Any]) -> Finding:
    ours, theirs = version("kagzi"), info["version"]
    told = f"server {theirs}, SDK and command line {ours}, PostgreSQL {info['postgres_version']}"
    if ours == theirs:
        return well("versions", told)
    return note("versions", told, "Upgrade the older one when it suits; a release works with the one before it.")


def _schema(info: dict[str, Any]) -> Finding:
    has, knows = info["schema_version"], info["known_schema_version"]
    if has < knows:
        message = f"the schema is at {has}, and the server needs {knows}"
        return act("schema", message, "Run `kagzi migrate` with KAGZI_DB_URL set.")
    if has > knows:
        return note("schema", f"the schema is at {has}, newer than the server's {knows}", "Upgrade the server.")
    return well("schema", f"at migration {has}, as the server needs it")


def _clock(info: dict[str, Any], began: datetime, ended: datetime) -> Finding:
    """What the answer's way takes is no skew."""
    told = datetime.fromisoformat(info["database_now"])
    apart = told - min(max(told, began), ended)
    return skewed("clock", apart, _SKEW, "the server's database")


def _parts(asked: Asking) -> Iterator[Finding]:
    health = asked.call("AdminService.HealthCheck")
    bad = [check for check in health["checks"] if check["status"] != "SERVING"]
    for check in bad:
        if check["name"] != "schema":
            yield act(f"server: {check['name']}", f"is {_word(check['status'])}", f"{check['message']}.")
    if not bad:
        yield well("server parts", ", ".join(check["name"] for check in health["checks"]) + " all do their work")


def _attention(asked: Asking) -> Iterator[Finding]:
    """What waits for a person, namespace by namespace."""
    found = asked.each("NamespaceService.ListNamespaces", "namespaces", _NAMESPACES + 1)
    quiet = 0
    for each in found[:_NAMESPACES]:
        name = each["name"]
        stats = asked.call("AdminService.GetStats", namespace=name, include_attention=True)
        for one in stats["attention"]:
            command, urgent = _CALLS_FOR.get(one["code"], ("kagzi stats", True))
            asks = command.format(one["subjects"][0] if one["subjects"] else "")
            where = "" if name == "default" else f" --namespace {name}"
            check = f"{name}: {one['code'].replace('_', ' ').lower()}"
            yield (act if urgent else note)(check, one["sentence"], f"See `{asks}{where}`.", one["subjects"])
        quiet += not stats["attention"]
    if quiet:
        yield well("namespaces", f"in {quiet} of {len(found[:_NAMESPACES])} nothing waits for a person")
    if len(found) > _NAMESPACES:
        yield unseen("namespaces", f"there are more than {_NAMESPACES} namespaces, and the others were not looked at")


def _word(status: str) -> str:
    return str(status).replace("_", " ").lower()
