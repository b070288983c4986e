"""The metrics of a workspace itself: its disk, its alarms, its orchestrator; of its corpus and its budgets.

Does not belong here: its runs (runs), its service levels, releases and canaries (`plinth_registry.metrics`).
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from plinth.compute.context import Context
from plinth.operation.spending import parameters
from plinth.operation.spending.ledger import MICROS, Ledger
from plinth.storage.workspace import Workspace
from plinth.training.sinks.metric import MetricSample
from plinth.training.telemetry.timeline import TimelineReader

#: Lines of failed jobs and of what sensors found, and the jobs among them that watch releases.
ALARMS: Final = "alerts.jsonl"
RELEASE_JOBS: Final = frozenset({"mirror", "canary", "feed"})

#: A file in `dagster/` that a sensor touches at every tick.
HEARTBEAT: Final = "heartbeat"


class WorkspaceState:
    """Disk, alarms and orchestrator; of `alerts.jsonl` only what is new is read."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace, self._alarms = workspace, TimelineReader(workspace.root / ALARMS)
        self._counts, self._last = Counter[str](), dict[str, float]()

    def collect(self) -> Iterator[MetricSample]:
        """The samples now."""
        disk = shutil.disk_usage(self._workspace.root)
        yield MetricSample("plinth_workspace_free_ratio", (), disk.free / disk.total)
        heartbeat = self._workspace.dagster / HEARTBEAT
        if heartbeat.exists():
            yield MetricSample("plinth_orchestrator_timestamp_seconds", (), heartbeat.stat().st_mtime)
        for line in self._alarms.poll():
            source = "release" if line["job"] in RELEASE_JOBS else "pipeline"
            self._counts[source] += 1
            self._last[source] = float(line["time"])
        for source in ("pipeline", "release"):
            yield MetricSample("plinth_alarms_total", (source,), float(self._counts[source]))
        for source, when in self._last.items():
            yield MetricSample("plinth_alarm_timestamp_seconds", (source,), when)


class CorpusState:
    """Published assets; a manifest is read once."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._known: dict[str, tuple[str, int, int]] = {}  # asset -> digest, rows, bytes

    def collect(self) -> Iterator[MetricSample]:
        """The samples now."""
        for ref in self._ctx.refs.all():
            known = self._known.get(ref.asset)
            if known is None or known[0] != ref.digest:
                manifest = self._ctx.refs.load(ref.digest)
                known = self._known[ref.asset] = ref.digest, manifest.rows, manifest.bytes
            yield MetricSample("plinth_asset_rows", (ref.asset,), float(known[1]))
            yield MetricSample("plinth_asset_bytes", (ref.asset,), float(known[2]))
            if ref.asset == "funnel":
                yield from self._funnel(ref.digest)

    def _funnel(self, digest: str) -> Iterator[MetricSample]:
        for stage in self._ctx.refs.load(digest).stats["total"]["stages"]:
            yield MetricSample("plinth_documents_in", (stage["stage"],), float(stage["documents_in"]))
            for reason, removed in stage["reasons"].items():
                yield MetricSample("plinth_documents_removed", (stage["stage"], reason), float(removed["documents"]))


def budget(ctx: Context) -> Iterator[MetricSample]:
    """Limits with what counts against them, and money by team and experiment.

    Raises:
        StorageError: the ledger cannot be reached.
    """
    place = parameters.ledger_place(ctx.workspace, parameters.load(ctx.workspace))
    if "://" not in place and not Path(place).exists():  # nothing was ever reserved; reading makes no ledger
        return
    ledger = Ledger(place)
    for limit, counted in ledger.limits(time.time()):
        assert limit.amount is not None
        labels = limit.scope, limit.name, limit.period
        yield MetricSample("plinth_budget_limit", labels, limit.amount / MICROS)
        yield MetricSample("plinth_budget_used", labels, counted / MICROS)
    for (team, experiment), (spent, reserved) in ledger.totals(parameters.workspace_name(ctx.workspace)).items():
        yield MetricSample("plinth_spent", (team, experiment), spent / MICROS)
        yield MetricSample("plinth_reserved", (team, experiment), reserved / MICROS)
