"""Table of all metrics; metrics of runs are defined in `training.sinks.run_metrics`.

The table has every metric that a rule, a dashboard or a page reads. `plinth ops metrics list` prints the table.
"""

from __future__ import annotations

from typing import Any, Final

from plinth.training.sinks.run_metrics import RUN, Metric

_ALERTS_FILE = "alerts.jsonl"


def _metric(part: str, source: str, name: str, *labels: str, **more: Any) -> Metric:
    return Metric(part=part, source=source, name=name, labels=labels, **more)


_OTHERS = (
    _metric("exporter", "exporter", "plinth_exporter_timestamp_seconds", presence="always", unit="seconds",
            meaning="Unix time of the exporter's last refresh."),
    _metric("exporter", "exporter", "plinth_exporter_read_bytes_total", kind="counter", presence="always", unit="bytes",
            meaning="Timeline bytes read."),
    _metric("exporter", "exporter", "plinth_collector_up", "part", presence="always",
            meaning="1 if the last collection of a part succeeded."),
    _metric("exporter", "exporter", "plinth_collector_seconds", "part", presence="always", unit="seconds",
            meaning="Duration of the last collection of each part."),
    _metric("workspace", "file system", "plinth_workspace_free_ratio", presence="always",
            meaning="Free share of the workspace's disk."),
    _metric("workspace", "dagster/heartbeat", "plinth_orchestrator_timestamp_seconds", unit="seconds",
            meaning="Time of the last Dagster sensor tick."),
    _metric("workspace", _ALERTS_FILE, "plinth_alarm_timestamp_seconds", "source", unit="seconds",
            meaning="Time of the last alarm. The source is `pipeline` for a failed job and `release` for an alarm "
                    "of the registry sensors."),
    _metric("workspace", _ALERTS_FILE, "plinth_alarms_total", "source", kind="counter", presence="always",
            meaning="Number of alarms by source."),
    _metric("corpus", "manifest", "plinth_asset_rows", "asset",
            meaning="Number of rows of a published asset; for corpus stages, the number of documents."),
    _metric("corpus", "manifest", "plinth_asset_bytes", "asset", unit="bytes",
            meaning="Size of a published asset in bytes."),
    _metric("corpus", "reference", "plinth_asset_timestamp_seconds", "asset", unit="seconds",
            meaning="Time of publication of an asset."),
    _metric("corpus", "funnel", "plinth_documents_removed", "stage", "reason",
            meaning="Number of documents that a stage of the funnel removed."),
    _metric("corpus", "funnel", "plinth_documents_in", "stage",
            meaning="Number of documents that entered a stage of the funnel."),
    _metric("service levels", "service levels", "plinth_sli_ratio", "indicator",
            meaning="SLI attainment of an indicator, over the objectives' window."),
    _metric("service levels", "objectives.yaml", "plinth_sli_objective_ratio", "indicator",
            meaning="Required SLI attainment."),
    _metric("service levels", "service levels", "plinth_error_budget_spent_ratio", "indicator",
            meaning="Bad seconds divided by the bad seconds that the objective allows; the error budget is "
                    "exhausted at 1 or more."),
    _metric("budget", "ledger of reservations", "plinth_budget_limit", "scope", "name", "period",
            meaning="Limit on the sum of reserved and spent cost, in units of money."),
    _metric("budget", "ledger of reservations", "plinth_budget_used", "scope", "name", "period",
            meaning="Sum of reserved and spent cost that counts against a limit, in units of money."),
    _metric("budget", "ledger of reservations", "plinth_spent", "team", "experiment",
            meaning="Cost of settled submissions of this workspace, in units of money."),
    _metric("budget", "ledger of reservations", "plinth_reserved", "team", "experiment",
            meaning="Cost reserved by unsettled submissions of this workspace, in units of money."),
    _metric("registry", "releases/", "plinth_trust_broken", presence="always",
            meaning="1 if the signed release history fails verification."),
    _metric("registry", "releases/", "plinth_release_version", "model", "place",
            meaning="Version number of the champion, the canary or the previous champion."),
    _metric("registry", "releases/", "plinth_release_timestamp_seconds", "model", unit="seconds",
            meaning="Time of the last movement of a release, such as a promotion or a rollback."),
    _metric("registry", "releases/", "plinth_release_movements_total", "model", "action", kind="counter",
            meaning="Number of movements of a release (such as promotions and rollbacks), by action."),
    _metric("registry", "taint/", "plinth_taints", presence="always", meaning="Number of active taints."),
    _metric("registry", "releases/, taint/", "plinth_champion_tainted", "model",
            meaning="1 if the champion is derived from a tainted artifact."),
    _metric("canary", "releases/", "plinth_canary_timestamp_seconds", "model", unit="seconds",
            meaning="Start time of the current canary."),
    _metric("canary", "trials/, held-out text", "plinth_canary_pairs", "model", "stream",
            meaning="Number of measured pairs in the trial of the canary."),
    _metric("canary", "trials/", "plinth_canary_worse_bound", "model", "stream",
            meaning="Upper confidence bound of the canary's loss minus the champion's loss."),
)  # fmt: skip

#: Metrics by name, in the order of pages.
METRICS: Final = {**RUN, **{one.name: one for one in _OTHERS}}
