"""The page of a trial: each stream with its boundary, what was rejected, foreign names as text, nothing loaded."""

from __future__ import annotations

from typing import Any

import pytest

from plinth_registry.canary import CanaryStatus, FeedCount, Trial
from plinth_registry.canary.page import MOST_PANELS, TrialStream, trial_figure, trial_page
from plinth_registry.gates.settings import TrialPolicy

POINTS = ((100, 0.4, -9.0, 9.8), (200, 1.4, -0.6, 3.4), (300, 1.6, 0.2, 3.0), (400, 1.5, 0.3, 2.7), (500, 1.5, 0, 2))


def stream(name: str = "held-out text: bucket code", **changes: Any) -> TrialStream:
    given = {"name": name, "role": "guard", "decision": "return", "finding": f"{name}: worse", "unit": "%"}
    return TrialStream.model_validate({**given, "margin": 0.5, "points": POINTS, "decided_at": 260, **changes})


def trial(*streams: TrialStream, decision: str = "return", **changes: Any) -> str:
    """The page of a trial with these streams."""
    given = {"release": "demo", "canary": "2", "champion": "1", "candidate_version": "2", "number": 1,
             "since": "2026-01-01T00:00:00+00:00", "policy": "a" * 64}  # fmt: skip
    status = CanaryStatus.model_validate({**given, "trial": Trial.model_validate({"decision": decision}), **changes})
    return trial_page(status, TrialPolicy(margin=0.005, level=0.95), streams)


def test_a_panel_shows_the_boundary_the_champion_and_the_pair_that_decided() -> None:
    (ax, *rest) = trial_figure([stream(), stream("latency", decision="continue", decided_at=None)]).axes
    assert sorted(line.get_ydata()[0] for line in ax.lines if len(set(line.get_ydata())) == 1) == [-0.5, 0]
    assert [260] in [list(dict.fromkeys(line.get_xdata())) for line in ax.lines]
    low, high = ax.get_ylim()
    assert -1 < low < -0.6
    assert 3.4 < high < 4  # the first point does not set the scale
    assert len(rest) == 1
    assert len(rest[0].lines) == len(ax.lines) - 1
    assert len(trial_figure([stream(str(at)) for at in range(MOST_PANELS + 5)]).axes) == MOST_PANELS
    assert trial_figure([stream(points=())]).axes[0].axison is False


def test_the_page_says_what_was_found_rejected_and_missing_and_loads_nothing() -> None:
    hostile = "<script>alert(1)</script>$x$"
    feeds = {hostile: FeedCount(pairs=5, earlier=2, rejects={"no time": 3}, fault="no answer")}
    found = trial(stream(hostile), small=("probe x (9)",), missing="a reason", feeds=feeds)
    assert hostile not in found
    assert found.count("<script>") == 1  # for the curves
    for said in (
        "Current decision: will be withdrawn.",
        "margin of 0.5%",
        "3 no time",
        "no answer",
        "probe x (9): skipped (n too small)",
        "a reason",
    ):
        assert said in found
    assert trial(stream(hostile)) == trial(stream(hostile))
    for loading in ("http://", "https://", "src=", "@import"):
        assert loading not in found.replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    ("decision", "shown"), [("promote", 'class="verdict mark pass"'), ("continue", 'class="verdict mark look"')]
)
def test_a_page_without_observations_says_so(decision: str, shown: str) -> None:
    found = trial(decision=decision)
    assert "No pairs have been observed yet" in found
    assert shown in found
    assert 'id="feeds"' not in found
