"""Every alert fires and clears on recorded series, as Prometheus' own promtool evaluates them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from plinth.errors import CheckFailedError
from plinth_ops.alerts.conditions import BurnRate, BurnWindow, SeriesSelector, duration
from plinth_ops.alerts.prometheus import rules, written
from plinth_ops.alerts.table import PAGE_WINDOWS, Alert, alerts, problems, require_sound
from plinth_ops.metrics.table import METRICS
from plinth_ops.service_levels.tallies import Objectives
from tests.plinth_ops.alerts.recorded import RECORDINGS, Recording, constant, promtool, whole

ALL = alerts()


def test_every_alert_has_a_recording_in_which_it_fires_in_time_and_clears() -> None:
    """The cause of each alert begins at 60 s, or has lasted for its limit by then."""
    promised = {one.name: one.promised_s for one in ALL}
    assert {one.alert for one in RECORDINGS} == set(promised)
    for one in RECORDINGS:
        assert 0 < one.fires < one.end_s
        assert one.clears <= one.end_s or one.alert == "ClockAhead"
        if one.alert not in ("RestartsRepeat", "HeldOutRises", "MetricAbsent"):
            assert one.fires - 60 <= promised[one.alert], one.alert


@pytest.mark.needs("Prometheus")
def test_an_alert_fires_and_clears(tmp_path: Path) -> None:
    assert promtool(tmp_path, [whole(one, ALL) for one in RECORDINGS]) == ""


@pytest.mark.needs("Prometheus")
@pytest.mark.parametrize("change", [{"fires": 75.0}, {"clears": 390.0}, {"labels": {"run": "r2"}}])
def test_promtool_sees_a_recording_that_is_wrong(tmp_path: Path, change: dict[str, Any]) -> None:
    assert "exp" in promtool(tmp_path, [whole(RECORDINGS[0]._replace(**change), ALL)])


def test_every_alert_reads_metrics_of_the_table_and_absent_ones_are_noticed() -> None:
    read = {selector.metric for one in ALL for selector in one.condition.selectors}
    assert read <= set(METRICS)
    guarded = {one.labels.get("metric") for one in ALL} | {one.labels.get("part") for one in ALL}
    for name in read:
        assert name in guarded or METRICS[name].part in guarded, name
    for one in ALL:
        for selector in one.condition.selectors:
            assert set(selector.where) <= set(METRICS[selector.metric].labels), selector


@pytest.mark.needs("Prometheus")
def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(written(rules(ALL)))
    done = subprocess.run(["promtool", "check", "rules", str(tmp_path / "rules.yaml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_objective_whose_alert_can_never_fire_is_refused_by_name() -> None:
    pages = {one.runbook for one in ALL}
    require_sound(ALL, pages)
    with pytest.raises(CheckFailedError, match="the alert table has errors") as refused:
        require_sound(alerts(Objectives(goodput=0.85)), pages)
    assert "GoodputBurnsFast can never fire" in str(refused.value)
    assert "GoodputBurnsSlowly" not in str(refused.value)
    usual = BurnWindow(long_s=3600, short_s=300, share=0.02)
    assert PAGE_WINDOWS[0].factor(28 * 86400) == pytest.approx(6.72)
    assert usual.factor(30 * 86400) == pytest.approx(14.4)  # the SRE workbook's
    for objective, dead in ((0.90, True), (0.93, True), (0.931, False)):  # 93.06% is the limit of 14.4
        one = _burning(objective, usual, 30 * 86400)
        assert bool(problems([one], {"r"})) == dead, objective


@pytest.mark.needs("Prometheus")
def test_an_alert_that_can_never_fire_does_not_where_all_is_bad(tmp_path: Path) -> None:
    good, held = constant(0.0), lambda time: time
    series = [("plinth_held_rank_seconds", {}, held), ("plinth_goodput_rank_seconds", {"cause": "goodput"}, good)]
    recording = Recording("Burns", series, 0, 0, 7200, {}, 60)
    for share, times in ((0.02, 0), (0.01, 1)):
        one = _burning(0.90, BurnWindow(long_s=3600, short_s=300, share=share), 28 * 86400)
        assert promtool(tmp_path, [(recording, [one], {7200.0: {"Burns": [{}] * times}})]) == ""


def test_a_runbook_that_is_missing_and_a_promise_that_cannot_be_kept_are_refused() -> None:
    one = ALL[0].model_copy(update={"runbook": "no-such-page"})
    late = ALL[1].model_copy(update={"promised_s": 60.0})
    found = problems([one, late], {alert.runbook for alert in ALL})
    assert found == [
        f"{one.name}: the runbook docs/runbooks/no-such-page.md does not exist",
        f"{late.name}: the response target is 60 s, but the alert cannot fire before 1845 s",
    ]


def test_durations_are_whole_units() -> None:
    assert [duration(seconds) for seconds in (15, 300, 5400, 21600, 86400, 0.25)] == [
        "15s", "5m", "90m", "6h", "1d", "250ms"
    ]  # fmt: skip


def _burning(objective: float, pair: BurnWindow, period_s: float) -> Alert:
    good = SeriesSelector(metric="plinth_goodput_rank_seconds", where={"cause": "goodput"})
    total = SeriesSelector(metric="plinth_held_rank_seconds")
    burn = BurnRate(good=good, total=total, objective=objective, period_s=period_s, windows=(pair,))
    return Alert(name="Burns", condition=burn, severity="page", owner="o", promised_s=4000, summary="s", runbook="r")
