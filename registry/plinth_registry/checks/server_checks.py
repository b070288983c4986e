"""Lines about the MLflow server: who may reach it, and whether somebody uses it."""

from __future__ import annotations

import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil

from plinth.operation.checklists.check import Check, CheckAnswer, failed, not_applicable, passed, undetermined, warned
from plinth.operation.checklists.place_checks import ANSWER_S
from plinth.operation.checklists.scope import CheckScope
from plinth_registry.login import settings
from plinth_registry.mlflow_process import HOST
from plinth_registry.server import find_server

#: A request that an MLflow without a login answers.
_ASKED = "/api/2.0/mlflow/experiments/search?max_results=1"
_MODULE = "plinth_registry.mlflow_process"


def behind_login(scope: CheckScope) -> CheckAnswer:
    """An MLflow that other machines reach refuses a request without a login; our own answers on loopback only."""
    named = os.environ.get("MLFLOW_TRACKING_URI", "")
    parts = urllib.parse.urlsplit(named)
    if not parts.scheme.startswith("http"):
        asks = settings.load(scope.ctx.workspace)
        words = f"login by {asks.kind}" if asks else "no login: whoever is on this machine may write"
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
    """No server runs for a workspace that is gone, or that nobody has used for hours."""
    orphans = [f"process {pid} serves {home}, which is gone" for pid, home in _serving() if not home.is_dir()]
    if orphans:
        return failed("; ".join(orphans))
    own = find_server(scope.ctx.workspace)
    if own is None:
        return not_applicable("no MLflow server of this workspace runs")
    log = scope.ctx.workspace.mlflow / "server.log"
    seconds = scope.now - max(log.stat().st_mtime, own.started_at_s) if log.exists() else 0.0
    hours = max(seconds, 0.0) / 3600  # the server may have written while the list was evaluated
    found = f"process {own.pid} at {own.uri}, idle for {hours:.1f} hours"
    return warned(found) if hours > scope.settings.idle_hours else passed(found)


def _serving() -> Iterator[tuple[int, Path]]:
    """This user's MLflow servers that Plinth has started, with the folder that each serves."""
    for process in psutil.process_iter(["cmdline", "uids"]):
        words, uids = process.info["cmdline"] or [], process.info["uids"]
        if _MODULE in words[:-1] and uids is not None and uids.effective == os.geteuid():
            yield process.pid, Path(words[words.index(_MODULE) + 1])


CHECKS = (
    Check(
        "mlflow-login", "an MLflow that other machines reach asks for a login", "security",
        ("readiness", "security"), "`plinth ops people login`, or the reverse proxy of infra/oidc/mlflow.conf",
        behind_login,
    ),
    Check(
        "servers-used", "no MLflow server runs for nobody", "platform", ("readiness", "security"),
        "`plinth down`; end processes of workspaces that are gone", servers_used,
    ),
)  # fmt: skip
