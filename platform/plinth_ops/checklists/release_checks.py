"""Checks of signed logs, releases, the MLflow server and the orchestrator. Does not import Dagster."""

from __future__ import annotations

import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil
import yaml

from plinth.errors import GateError, LineageError, MissingError, TrustError
from plinth.trust.dsse import time_of
from plinth_jobs.instance import settings_file
from plinth_jobs.supervised import started
from plinth_ops.checklists.place_checks import ANSWER_S
from plinth_ops.checklists.review import (
    Check,
    CheckAnswer,
    CheckScope,
    failed,
    not_applicable,
    passed,
    undetermined,
    warned,
)
from plinth_registry import consumers, incidents, policy, releases, taint, verified
from plinth_registry.audit_log import AUDIT, logs_in_head
from plinth_registry.mlflow import settings
from plinth_registry.mlflow.server import HOST, find_server

#: Tolerance in days for a head signed in the future; beyond it a clock is or was wrong.
AHEAD_DAYS: Final = 1 / 24


def audit_proved(scope: CheckScope) -> CheckAnswer:
    """Check that every decision is in the signed, hash-chained audit log, and that no release decision is missing."""
    proof = releases.prove_log(scope.ctx)
    return passed(f"{proof.entries} audit log entries, referenced by {len(proof.anchors)} release records")


def logs_hold(scope: CheckScope) -> CheckAnswer:
    """Check that every signed log except `audit` and `policies` verifies and extends the state in the release head."""
    own = (AUDIT.name, "policies")  # covered by the checks `audit-log` and `gate-policy`
    others = [log for log in logs_in_head(scope.ctx) if not log.name.startswith(own)]
    counts = {log.name: len(releases.log_records(scope.ctx, log)) for log in others}
    return passed(", ".join(f"{name} {count}" for name, count in counts.items() if count) or "all are empty")


def head_fresh(scope: CheckScope) -> CheckAnswer:
    """Check that the head of the release history verifies and is renewed in time."""
    found = releases.history(scope.ctx)
    if not found:
        return not_applicable("nothing was released")
    until = releases.head_expires(scope.ctx)
    left = (time_of(until) - datetime.fromtimestamp(scope.now, UTC)).total_seconds() / 86400
    words = f"{len(found)} records, head valid until {until}"
    if left > releases.HEAD_DAYS + AHEAD_DAYS:
        ahead = f"signed {left - releases.HEAD_DAYS:.1f} days in the future"
        return warned(f"{words}: {ahead}, so a clock is or was wrong")
    late = left < releases.HEAD_DAYS - 2 * releases.REFRESH_DAYS
    return warned(f"{words}: no process renews the head daily") if late else passed(words)


def sealed(scope: CheckScope) -> CheckAnswer:
    """Check that every published reference has the seal of a worker of this workspace."""
    published = list(scope.ctx.refs.all())
    if not published:
        return not_applicable("nothing is published")
    bare = [one.asset for one in published if one.seal is None]
    foreign = [one.asset for one in published if one.seal is not None and not _own(scope, one.asset)]
    if bare or foreign:
        return failed("; ".join(f"{word}: {', '.join(names[:5])}" for word, names in
                                (("no seal", bare), ("a seal of an unknown worker", foreign)) if names))  # fmt: skip
    return passed(f"{len(published)} references")


def _own(scope: CheckScope, asset: str) -> bool:
    from plinth.errors import SealError

    try:
        scope.ctx.refs.ref(asset)
    except SealError:
        return False
    return True


#: Assets of a run, last first; the lineage walk starts from the first one that is published.
_LAST = ("candidate", "evaluation", "run", "mixture", "funnel")


def policy_signed(scope: CheckScope) -> CheckAnswer:
    """Check that a signed policy defines the release gates."""
    if scope.recipe is None or scope.recipe.release is None:
        return not_applicable("the recipe releases nothing")
    try:
        found = policy.current(scope.ctx, scope.recipe.release.name)
    except GateError as error:
        return failed(error.what)
    return passed(f"{found.title}, signed {found.at} by {', '.join(found.signers)}")


def policy_measured(scope: CheckScope) -> CheckAnswer:
    """Check that the recipe measures the evidence for every gate of the policy."""
    if scope.recipe is None or scope.recipe.release is None:
        return not_applicable("the recipe releases nothing")
    try:
        found = policy.current(scope.ctx, scope.recipe.release.name)
    except TrustError as error:  # reported by the check `gate-policy`
        return undetermined(error.what)
    absent = policy.unmeasured(found.policy, scope.recipe)
    return failed("; ".join(absent)) if absent else passed(f"{len(found.policy.asked)} gates")


def lineage_complete(scope: CheckScope) -> CheckAnswer:
    """Check that the lineage of the last published asset is complete and unchanged down to the raw sources."""
    from plinth.provenance import statements

    last = next((asset for asset in _LAST if scope.ctx.refs.ref(asset) is not None), None)
    if last is None:
        return undetermined(f"none of {', '.join(_LAST)} is published")
    try:
        found = statements.chain(scope.ctx.refs, scope.ctx.refs.current(last))
        found.require_sources()
    except (LineageError, MissingError) as error:
        return failed(f"{last}: {error.what}")
    return passed(f"{last}: {len(found.links)} manifests down to {len(found.sources)} sources")


def champion_holds(scope: CheckScope) -> CheckAnswer:
    """Check that the champion's records and model verify, and that the champion is neither tainted nor withdrawn."""
    name, champion = _champion(scope)
    if champion is None:
        return not_applicable("no champion")
    verified.verify_release(scope.ctx, name, champion)
    return passed(
        f"{name} version {champion}: records and model are verified; the lineage is not checked here (run `plinth "
        "verify champion`)"
    )


def way_back(scope: CheckScope) -> CheckAnswer:
    """Check that there is an earlier good version of the release to roll back to."""
    name, champion = _champion(scope)
    if champion is None:
        return not_applicable("no champion")
    good = verified.last_good(scope.ctx, name, releases.history(scope.ctx, name).standing)
    return passed(f"{name} version {good}") if good else warned(f"no good version before {name} version {champion}")


def consumers_known(scope: CheckScope) -> CheckAnswer:
    """Check that the champion has consumers that are enrolled with an owner."""
    name, champion = _champion(scope)
    if champion is None:
        return not_applicable("no champion")
    found = consumers.concerned(scope.ctx, (), {name})
    words = ", ".join(f"{one.name} ({one.owner})" for one in found)
    return passed(words) if found else warned(f"no consumer of {name} is enrolled, so no one is notified of a rollback")


def nothing_marked(scope: CheckScope) -> CheckAnswer:
    """Check that there are no active taints."""
    found = taint.records(scope.ctx)
    words = "; ".join(f"{one.kind} {one.target[:16]} by {one.by}: {one.reason}" for one in found)
    return warned(words) if found else passed("none")


def no_incident(scope: CheckScope) -> CheckAnswer:
    """Check that no incident is open."""
    found = incidents.open_ones(scope.ctx)
    words = "; ".join(f"incident {one.number} since {one.opened}: {one.title}" for one in found)
    return failed(f"promotions are frozen by {words}") if found else passed("none is open")


def _champion(scope: CheckScope) -> tuple[str, str | None]:
    if scope.recipe is None or scope.recipe.release is None:
        return "", None
    name = scope.recipe.release.name
    return name, releases.history(scope.ctx, name).standing.champion


#: Request that an MLflow server without authentication answers.
_ASKED = "/api/2.0/mlflow/experiments/search?max_results=1"
_MODULE = "plinth_registry.mlflow.server"


def behind_login(scope: CheckScope) -> CheckAnswer:
    """Check that a remote MLflow server requires a login. The workspace's own server passes: it listens on loopback
    only."""
    named = os.environ.get("MLFLOW_TRACKING_URI", "")
    parts = urllib.parse.urlsplit(named)
    if not parts.scheme.startswith("http"):
        asks = settings.load(scope.ctx.workspace)
        words = f"login by {asks.kind}" if asks else "MLflow has no login: every user of this machine can write to it"
        return passed(f"own server, on {HOST} only; {words}")
    try:
        with urllib.request.urlopen(named.rstrip("/") + _ASKED, timeout=ANSWER_S) as answer:
            said = f"{parts.hostname} answers {answer.status} without a login"
    except urllib.error.HTTPError as error:
        refused = error.code in (401, 403)
        return passed(f"{parts.hostname} refuses: {error.code}") if refused else undetermined(f"{named}: {error.code}")
    except (OSError, ValueError) as error:
        return undetermined(f"{named}: {error}")
    return warned(f"{said}, on loopback") if parts.hostname in ("localhost", "127.0.0.1", "::1") else failed(said)


def servers_used(scope: CheckScope) -> CheckAnswer:
    """Check that no MLflow server runs for a deleted workspace or stays idle for hours."""
    orphans = [
        f"MLflow server process {pid} serves the workspace {home}, which does not exist"
        for pid, home in _serving()
        if not home.is_dir()
    ]
    if orphans:
        return failed("; ".join(orphans))
    own = find_server(scope.ctx.workspace)
    if own is None:
        return not_applicable("no MLflow server of this workspace runs")
    log = scope.ctx.workspace.mlflow / "server.log"
    seconds = scope.now - max(log.stat().st_mtime, own.started_at_s) if log.exists() else 0.0
    hours = max(seconds, 0.0) / 3600  # the server may have written while the list was evaluated
    found = f"MLflow server process {own.pid} at {own.uri} has been idle for {hours:.1f} hours"
    return warned(found) if hours > scope.settings.idle_hours else passed(found)


def _serving() -> Iterator[tuple[int, Path]]:
    """Yield the process ID and the served folder of each MLflow server that Plinth started for this user."""
    for process in psutil.process_iter(["cmdline", "uids"]):
        words, uids = process.info["cmdline"] or [], process.info["uids"]
        if _MODULE in words[:-1] and uids is not None and uids.effective == os.geteuid():
            yield process.pid, Path(words[words.index(_MODULE) + 1])


def telemetry_off(scope: CheckScope) -> CheckAnswer:
    """Check that telemetry of Dagster, Great Expectations and MLflow is off."""
    workspace = scope.ctx.workspace
    files = [settings_file(), workspace.dagster / "dagster.yaml"]
    found = [f"{path}: telemetry.enabled" for path in files if path.exists() and _sends(path)]
    found += list(_environment())
    if found:
        return failed("; ".join(found))
    return passed("telemetry is off in dagster.yaml and in the environment variables")


def automation_runs(scope: CheckScope) -> CheckAnswer:
    """Check that the Dagster daemon of this workspace is running. The daemon evaluates schedules and sensors."""
    names = [each.name for each in started(scope.ctx.workspace)]
    if "Dagster" in names:
        return passed(", ".join(names))
    return warned("`plinth up` is not running: schedules and sensors are not evaluated")


def _sends(path: Path) -> bool:
    settings = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    return bool((settings.get("telemetry") or {}).get("enabled", True))  # Dagster's own default is to send


def _environment() -> Iterator[str]:
    """Yield environment variables that turn telemetry back on."""
    for name, sending in (
        ("GX_ANALYTICS_ENABLED", ("true", "1", "yes", "on")),
        ("MLFLOW_DISABLE_TELEMETRY", ("false", "0", "no", "off")),
        ("DO_NOT_TRACK", ("false", "0", "no", "off")),
    ):
        if os.environ.get(name, "").lower() in sending:
            yield f"{name}={os.environ[name]}"


CHECKS = (
    Check(
        "audit-log", "every decision is signed and chained, and none is missing", "security",
        ("readiness", "incident", "security"), "restore audit/ from a backup; find out who had access", audit_proved,
        waivable=False,
    ),
    Check(
        "signed-logs", "the logs of taints, feeds, policies, waivers and incidents verify", "security",
        ("readiness", "incident", "security"), "restore the broken log from a backup", logs_hold,
        waivable=False,
    ),
    Check(
        "release-head", "the head of the release history verifies and is renewed daily", "release",
        ("readiness", "incident", "security"),
        "`plinth up` renews the head daily; `plinth release mirror` renews it once",
        head_fresh,
    ),
    Check(
        "seals", "every published asset was published by a worker of this workspace", "security", ("security",),
        "run the pipeline again; adopt assets that are older than the root of trust with `plinth keys adopt`", sealed,
    ),
    Check(
        "gate-policy", "a signed policy defines the release gates", "release",
        ("preproduction", "readiness", "security"),
        "sign a gate policy with `plinth gates sign FILE` (docs/gates.md)", policy_signed,
    ),
    Check(
        "gates-measured", "the recipe measures the evidence for every policy gate", "evaluation", ("preproduction",),
        "add the missing measurements to the recipe, or agree on another policy with its owner", policy_measured,
    ),
    Check(
        "lineage", "the lineage down to the raw sources is complete", "data", ("preproduction", "readiness"),
        "find the first broken link with `plinth verify ASSET`; run the pipeline again", lineage_complete,
    ),
    Check(
        "champion", "the champion verifies and is not tainted", "release", ("readiness", "incident"),
        "roll back with `plinth release rollback --by PERSON --reason TEXT`", champion_holds,
    ),
    Check(
        "way-back", "there is a good version to roll back to", "release", ("readiness", "incident"),
        "release a second version; until then, a bad version can only be withdrawn with `plinth release rollback "
        "--withdraw --by PERSON --reason TEXT`",
        way_back,
    ),
    Check(
        "consumers", "the consumers of the champion are enrolled with an owner", "release", ("readiness", "incident"),
        "add a consumer with `plinth release consumer add NAME --owner PERSON --model RELEASE`", consumers_known,
    ),
    Check(
        "marks", "there are no active taints", "compliance", ("incident",),
        "list everything derived from TARGET with `plinth release impact TARGET`", nothing_marked,
    ),
    Check(
        "no-incident", "no incident is open", "on-call", ("preproduction", "readiness"),
        "inspect the incident with `plinth ops incident show`, and close it with "
        "`plinth ops incident close --reason TEXT`", no_incident,
    ),
    Check(
        "mlflow-login", "an MLflow server that other machines can reach requires a login", "security",
        ("readiness", "security"),
        "enable a login with `plinth ops people login`, or use the reverse proxy in infra/oidc/mlflow.conf",
        behind_login,
    ),
    Check(
        "servers-used", "no MLflow server is idle or serves a deleted workspace", "platform", ("readiness", "security"),
        "stop the server with `plinth down`, and stop the servers of deleted workspaces", servers_used,
    ),
    Check(
        "telemetry", "telemetry of Dagster, Great Expectations and MLflow is off", "security", (
        "preproduction", "security"),
        "set `telemetry.enabled: false` in dagster.yaml, and unset the environment variable", telemetry_off,
    ),
    Check(
        "automation", "schedules and sensors of this workspace are evaluated", "platform", ("readiness", "incident"),
        "run `plinth up` as a service", automation_runs,
    ),
)  # fmt: skip
