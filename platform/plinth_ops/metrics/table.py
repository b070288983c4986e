"""Table of all metrics; metrics of runs are defined in `training.sinks.run_metrics`.

The table has every metric that a rule, a dashboard or a page reads. `plinth ops metrics list` prints the table.
"""

from __future__ import annotations

from typing import Final

from plinth.training.sinks.run_metrics import RUN, Metric

_ALERTS_FILE = "alerts.jsonl"

_OTHERS = (
    Metric(
        name="plinth_exporter_timestamp_seconds",
        unit="seconds",
        meaning="Unix time of the exporter's last refresh.",
        source="exporter",
        part="exporter",
        presence="always",
    ),
    Metric(
        name="plinth_exporter_read_bytes_total",
        unit="bytes",
        kind="counter",
        meaning="Timeline bytes read.",
        source="exporter",
        part="exporter",
        presence="always",
    ),
    Metric(
        name="plinth_collector_up",
        labels=("part",),
        meaning="1 if the last collection of a part succeeded.",
        source="exporter",
        part="exporter",
        presence="always",
    ),
    Metric(
        name="plinth_collector_seconds",
        unit="seconds",
        labels=("part",),
        meaning="Duration of the last collection of each part.",
        source="exporter",
        part="exporter",
        presence="always",
    ),
    Metric(
        name="plinth_workspace_free_ratio",
        meaning="Free share of the workspace's disk.",
        source="file system",
        part="workspace",
        presence="always",
    ),
    Metric(
        name="plinth_orchestrator_timestamp_seconds",
        unit="seconds",
        meaning="Time of the last Dagster sensor tick.",
        source="dagster/heartbeat",
        part="workspace",
    ),
    Metric(
        name="plinth_alarm_timestamp_seconds",
        unit="seconds",
        labels=("source",),
        meaning="Time of the last alarm. The source is `pipeline` for a failed job and `release` for an alarm of the "
        "registry sensors.",
        source=_ALERTS_FILE,
        part="workspace",
    ),
    Metric(
        name="plinth_alarms_total",
        kind="counter",
        labels=("source",),
        meaning="Number of alarms by source.",
        source=_ALERTS_FILE,
        part="workspace",
        presence="always",
    ),
    Metric(
        name="plinth_asset_rows",
        labels=("asset",),
        meaning="Number of rows of a published asset; for corpus stages, the number of documents.",
        source="manifest",
        part="corpus",
    ),
    Metric(
        name="plinth_asset_bytes",
        unit="bytes",
        labels=("asset",),
        meaning="Size of a published asset in bytes.",
        source="manifest",
        part="corpus",
    ),
    Metric(
        name="plinth_asset_timestamp_seconds",
        unit="seconds",
        labels=("asset",),
        meaning="Time of publication of an asset.",
        source="reference",
        part="corpus",
    ),
    Metric(
        name="plinth_documents_removed",
        labels=("stage", "reason"),
        meaning="Number of documents that a stage of the funnel removed.",
        source="funnel",
        part="corpus",
    ),
    Metric(
        name="plinth_documents_in",
        labels=("stage",),
        meaning="Number of documents that entered a stage of the funnel.",
        source="funnel",
        part="corpus",
    ),
    Metric(
        name="plinth_sli_ratio",
        labels=("indicator",),
        meaning="SLI attainment of an indicator, over the objectives' window.",
        source="service levels",
        part="service levels",
    ),
    Metric(
        name="plinth_sli_objective_ratio",
        labels=("indicator",),
        meaning="Required SLI attainment.",
        source="objectives.yaml",
        part="service levels",
    ),
    Metric(
        name="plinth_error_budget_spent_ratio",
        labels=("indicator",),
        meaning="Bad seconds divided by the bad seconds that the objective allows; the error budget is exhausted at 1 "
        "or more.",
        source="service levels",
        part="service levels",
    ),
    Metric(
        name="plinth_budget_limit",
        labels=("scope", "name", "period"),
        meaning="Limit on the sum of reserved and spent cost, in units of money.",
        source="ledger of reservations",
        part="budget",
    ),
    Metric(
        name="plinth_budget_used",
        labels=("scope", "name", "period"),
        meaning="Sum of reserved and spent cost that counts against a limit, in units of money.",
        source="ledger of reservations",
        part="budget",
    ),
    Metric(
        name="plinth_spent",
        labels=("team", "experiment"),
        meaning="Cost of settled submissions of this workspace, in units of money.",
        source="ledger of reservations",
        part="budget",
    ),
    Metric(
        name="plinth_reserved",
        labels=("team", "experiment"),
        meaning="Cost reserved by unsettled submissions of this workspace, in units of money.",
        source="ledger of reservations",
        part="budget",
    ),
    Metric(
        name="plinth_trust_broken",
        meaning="1 if the signed release history fails verification.",
        source="releases/",
        part="registry",
        presence="always",
    ),
    Metric(
        name="plinth_release_version",
        labels=("model", "place"),
        meaning="Version number of the champion, the canary or the previous champion.",
        source="releases/",
        part="registry",
    ),
    Metric(
        name="plinth_release_timestamp_seconds",
        unit="seconds",
        labels=("model",),
        meaning="Time of the last movement of a release, such as a promotion or a rollback.",
        source="releases/",
        part="registry",
    ),
    Metric(
        name="plinth_release_movements_total",
        kind="counter",
        labels=("model", "action"),
        meaning="Number of movements of a release (such as promotions and rollbacks), by action.",
        source="releases/",
        part="registry",
    ),
    Metric(
        name="plinth_taints",
        meaning="Number of active taints.",
        source="taint/",
        part="registry",
        presence="always",
    ),
    Metric(
        name="plinth_champion_tainted",
        labels=("model",),
        meaning="1 if the champion is derived from a tainted artifact.",
        source="releases/, taint/",
        part="registry",
    ),
    Metric(
        name="plinth_canary_timestamp_seconds",
        unit="seconds",
        labels=("model",),
        meaning="Start time of the current canary.",
        source="releases/",
        part="canary",
    ),
    Metric(
        name="plinth_canary_pairs",
        labels=("model", "stream"),
        meaning="Number of measured pairs in the trial of the canary.",
        source="trials/, held-out text",
        part="canary",
    ),
    Metric(
        name="plinth_canary_worse_bound",
        labels=("model", "stream"),
        meaning="Upper confidence bound of the canary's loss minus the champion's loss.",
        source="trials/",
        part="canary",
    ),
)

#: Metrics by name, in the order of pages.
METRICS: Final = {**RUN, **{one.name: one for one in _OTHERS}}
