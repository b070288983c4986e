"""The table of all metrics: those of runs beside what trains them (`training.sinks.run_metrics`), all others here.

Every name that a rule, a dashboard or a page reads is in it. `plinth ops metrics list` prints it.
"""

from __future__ import annotations

from typing import Final

from plinth.training.sinks.run_metrics import RUN, Metric

_ALERTS_FILE = "alerts.jsonl"

_OTHERS = (
    Metric(
        name="plinth_exporter_timestamp_seconds",
        unit="seconds",
        meaning="Time of the exporter's last refresh.",
        source="exporter",
        part="exporter",
        presence="always",
    ),
    Metric(
        name="plinth_exporter_read_bytes_total",
        unit="bytes",
        kind="counter",
        meaning="Bytes read of timelines.",
        source="exporter",
        part="exporter",
        presence="always",
    ),
    Metric(
        name="plinth_collector_up",
        labels=("part",),
        meaning="1 where the last collection of a part succeeded.",
        source="exporter",
        part="exporter",
        presence="always",
    ),
    Metric(
        name="plinth_collector_seconds",
        unit="seconds",
        labels=("part",),
        meaning="Duration of the last collection of a part; of one that another process collects, until it was taken.",
        source="exporter",
        part="exporter",
        presence="always",
    ),
    Metric(
        name="plinth_workspace_free_ratio",
        meaning="Free share of the disk that the workspace lies on.",
        source="file system",
        part="workspace",
        presence="always",
    ),
    Metric(
        name="plinth_orchestrator_timestamp_seconds",
        unit="seconds",
        meaning="Time of the last tick of a sensor of Dagster.",
        source="dagster/heartbeat",
        part="workspace",
    ),
    Metric(
        name="plinth_alarm_timestamp_seconds",
        unit="seconds",
        labels=("source",),
        meaning="Time of the last line: `pipeline` for a failed job, `release` for what the registry's sensors found.",
        source=_ALERTS_FILE,
        part="workspace",
    ),
    Metric(
        name="plinth_alarms_total",
        kind="counter",
        labels=("source",),
        meaning="Lines by the same.",
        source=_ALERTS_FILE,
        part="workspace",
        presence="always",
    ),
    Metric(
        name="plinth_asset_rows",
        labels=("asset",),
        meaning="Rows of a published asset: documents of the corpus.",
        source="manifest",
        part="corpus",
    ),
    Metric(
        name="plinth_asset_bytes",
        unit="bytes",
        labels=("asset",),
        meaning="Bytes of a published asset.",
        source="manifest",
        part="corpus",
    ),
    Metric(
        name="plinth_asset_timestamp_seconds",
        unit="seconds",
        labels=("asset",),
        meaning="When an asset was published.",
        source="reference",
        part="corpus",
    ),
    Metric(
        name="plinth_documents_removed",
        labels=("stage", "reason"),
        meaning="Documents that a stage of the funnel removed.",
        source="funnel",
        part="corpus",
    ),
    Metric(
        name="plinth_documents_in",
        labels=("stage",),
        meaning="Documents that came into a stage of the funnel.",
        source="funnel",
        part="corpus",
    ),
    Metric(
        name="plinth_sli_ratio",
        labels=("indicator",),
        meaning="Share of an indicator's rank-seconds that was good, over the objectives' window.",
        source="service levels",
        part="service levels",
    ),
    Metric(
        name="plinth_sli_objective_ratio",
        labels=("indicator",),
        meaning="Share that has to be good.",
        source="objectives.yaml",
        part="service levels",
    ),
    Metric(
        name="plinth_error_budget_spent_ratio",
        labels=("indicator",),
        meaning="Bad seconds over those that the objective allows; 1 and above: spent.",
        source="service levels",
        part="service levels",
    ),
    Metric(
        name="plinth_budget_limit",
        labels=("scope", "name", "period"),
        meaning="The most that may be reserved and spent, in units of money.",
        source="ledger of reservations",
        part="budget",
    ),
    Metric(
        name="plinth_budget_used",
        labels=("scope", "name", "period"),
        meaning="What is spent or reserved of it.",
        source="ledger of reservations",
        part="budget",
    ),
    Metric(
        name="plinth_spent",
        labels=("team", "experiment"),
        meaning="Spent by submissions of this workspace that are settled, in units of money.",
        source="ledger of reservations",
        part="budget",
    ),
    Metric(
        name="plinth_reserved",
        labels=("team", "experiment"),
        meaning="Reserved by those that are not.",
        source="ledger of reservations",
        part="budget",
    ),
    Metric(
        name="plinth_trust_broken",
        meaning="1 where the signed history of releases does not hold.",
        source="releases/",
        part="registry",
        presence="always",
    ),
    Metric(
        name="plinth_release_version",
        labels=("model", "place"),
        meaning="Number of the version that is champion, canary or previous.",
        source="releases/",
        part="registry",
    ),
    Metric(
        name="plinth_release_timestamp_seconds",
        unit="seconds",
        labels=("model",),
        meaning="When a release was last moved.",
        source="releases/",
        part="registry",
    ),
    Metric(
        name="plinth_release_movements_total",
        kind="counter",
        labels=("model", "action"),
        meaning="Movements of a release.",
        source="releases/",
        part="registry",
    ),
    Metric(
        name="plinth_taints",
        meaning="Marks that stand.",
        source="taint/",
        part="registry",
        presence="always",
    ),
    Metric(
        name="plinth_champion_tainted",
        labels=("model",),
        meaning="1 where the champion is made of something that was marked unfit.",
        source="releases/, taint/",
        part="registry",
    ),
    Metric(
        name="plinth_canary_timestamp_seconds",
        unit="seconds",
        labels=("model",),
        meaning="When the canary on trial was put there.",
        source="releases/",
        part="canary",
    ),
    Metric(
        name="plinth_canary_pairs",
        labels=("model", "stream"),
        meaning="Pairs of values that a trial's stream has.",
        source="trials/, held-out text",
        part="canary",
    ),
    Metric(
        name="plinth_canary_worse_bound",
        labels=("model", "stream"),
        meaning="Upper end of the interval of the canary's loss over the champion's.",
        source="judgement of the trial",
        part="canary",
    ),
)

#: By name, in the order in which a page prints them.
METRICS: Final = {**RUN, **{one.name: one for one in _OTHERS}}
