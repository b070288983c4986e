"""A game day's alerts fire first according to Prometheus."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from plinth_ops.alerts.table import alerts
from plinth_ops.gamedays import gameday
from tests.plinth_ops.alerts.recorded import RUN, Curve, Recording, promtool

OTHER = {"run": "r2"}
#: Metric, labels, value from 15 s on; the alert that reads it, when it fires first, and until when.
SAMPLES: tuple[tuple[str, dict[str, str], float, str, float, float], ...] = (
    ("plinth_run_failed", RUN, 1.0, "JobFailed", 15.0, inf),
    ("plinth_run_failed", OTHER, 0.0, "JobFailed", inf, inf),
    ("plinth_event_timestamp_seconds", {**RUN, "kind": "restart"}, 0.0, "RunRestarted", 15.0, inf),
    ("plinth_event_timestamp_seconds", {**RUN, "kind": "hang"}, -900.0, "RunHung", inf, inf),
    ("plinth_event_timestamp_seconds", {**OTHER, "kind": "refused"}, -880.0, "CheckpointRefused", 15.0, 20.0),
    ("plinth_last_event_timestamp_seconds", RUN, -1700.0, "RunSilent", 105.0, inf),
    ("plinth_last_event_timestamp_seconds", OTHER, -1790.0, "RunSilent", inf, inf),  # it is not under way
    ("plinth_checkpoint_timestamp_seconds", RUN, -3580.0, "CheckpointStale", 90.0, inf),
    ("plinth_last_event_timestamp_seconds", {"run": "r3"}, 120.0, "ClockAhead", 15.0, 60.0),
    ("plinth_workspace_free_ratio", {}, 0.04, "DiskNearlyFull", 75.0, inf),
    ("plinth_champion_tainted", {"model": "m"}, 1.0, "ChampionTainted", 15.0, inf),
    ("plinth_orchestrator_timestamp_seconds", {}, -300.0, "OrchestratorSilent", 15.0, inf),
    ("plinth_events_total", {**RUN, "kind": "restart"}, 3.0, "RestartsRepeat", inf, inf),  # it rose before
)
ACTIVE = [("plinth_run_active", RUN, 1.0), ("plinth_run_active", OTHER, 0.0)]
SPAN_S = 300.0


@pytest.mark.needs("Prometheus")
def test_first_firings_are_those_of_prometheus(tmp_path: Path) -> None:
    wanted = [one for one in alerts() if one.name in {sample[3] for sample in SAMPLES}]
    expected = {name: first for *_, name, first, _ in SAMPLES if first < inf}
    sampled = [*ACTIVE, *((metric, labels, value) for metric, labels, value, *_ in SAMPLES)]
    assert gameday._first_fired(wanted, sampled, 0.0, SPAN_S) == expected

    def from_15_s(value: float) -> Curve:
        return lambda time: value if time >= 15 else None

    series = [(metric, labels, from_15_s(value)) for metric, labels, value in sampled]
    recording = Recording("all", series, 0, 0, SPAN_S, {})
    firing = {
        time: {
            one.name: [labels for _, labels, _, name, first, until in SAMPLES if name == one.name
                       and first <= time < until]
            for one in wanted
        }
        for time in recording.times
    }  # fmt: skip
    assert promtool(tmp_path, [(recording, wanted, firing)]) == ""
