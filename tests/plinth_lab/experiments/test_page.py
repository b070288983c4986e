"""The page of an experiment: everything that was given is on it, hostile names are text, and nothing is loaded."""

from xml.etree import ElementTree

import numpy as np
import pytest

from plinth_lab.experiments.effects import ArmScores, effects, stopping
from plinth_lab.experiments.page import EffectRow, RunCurve, curves, forest, page

HOSTILE = "<script>alert(1)</script>$x"
COUNT = 40
CURVE = ((10, 1000, 2.0), (20, 2000, float("nan")), (30, 3000, 1.5))


def scores() -> list[ArmScores]:
    rng = np.random.default_rng(0)
    size = np.full(COUNT, 100.0)
    names, slices = np.array([f"{i:032x}" for i in range(COUNT)]), np.array(["web", "code"] * (COUNT // 2))
    found = [
        ArmScores(arm, "4m", seed, "finished", "", names, slices, size, size * rng.normal(value, 0.01, COUNT),
                  tokens=1_000_000, flops=2e12, seconds=1800.0, curve=CURVE)
        for arm, value in (("raw", 1.0), (HOSTILE, 1.2))
        for seed in range(5)
    ]  # fmt: skip
    return [*found, ArmScores("hot", "4m", 0, "diverged", "loss is nan at step 7")]


@pytest.fixture(scope="module")
def shown() -> str:
    given = scores()
    arms = {"raw": {}, HOSTILE: {"corpus": {"dedup": None}}, "hot": {"training": {"lr": 9.5}}}
    return page(
        "filters", "Which filter?", "bits per byte", "raw", arms, given, effects(given, "raw"),
        stopping(given, "raw", range(9)), {"raw": {"made": 40, "reused": 3}}, ["Budget: 8 rank-hours."],
    )  # fmt: skip


def test_it_says_everything_that_was_given(shown: str) -> None:
    for said in (
        "Which filter?", "worse by 0.", "diverged: loss is nan at step 7", "lr: 9.5", "dedup: null", "Budget: 8 rank",
        'id="effects"', 'id="curves"', 'id="stopping"', 'id="failures"', "Runs saved: 4", "10 M", "2e+13",
        '<td data-label="pipeline steps computed" class="n">40</td>', "not measured: hot, seed 0",
        "by slice of the test text",
    ):  # fmt: skip
        assert said in shown, said


def test_names_are_text_and_nothing_is_loaded(shown: str) -> None:
    assert HOSTILE not in shown
    assert shown.count("<script") == 1  # for the curves
    for loading in ("http://", "https://", "src=", "@import"):
        assert loading not in shown.replace("http://www.w3.org", "")
    assert shown.count('role="img" aria-label=') == 2


def test_an_experiment_whose_base_alone_failed_has_a_page() -> None:
    lost = [ArmScores("raw", "4m", 0, "failed", "disk full")]
    found = page("f", "q", "bits per byte", "raw", {"raw": {}}, lost, [])
    assert "failed: disk full" in found
    assert "<svg" not in found


def test_figures_have_a_panel_a_size_and_a_line_a_run() -> None:
    rows = [
        EffectRow(panel="size 4m", name="x", better="arm", value=-0.1, low=-0.2, high=-0.05),
        EffectRow(panel="size 9m", name="x"),
    ]
    drawn = forest(rows, "bits per byte", True)
    assert [ax.get_title(loc="left") for ax in drawn.axes] == ["size 4m", "size 9m"]
    assert [list(line.get_xdata()) for line in drawn.axes[0].lines] == [[0, 0], [-0.2, -0.05], [-0.1]]
    assert [text.get_text() for text in drawn.axes[1].texts] == [" not measured"]
    runs = [RunCurve(panel="size 4m", arm=arm, steps=(1, 2), values=(2.0, 1.0)) for arm in ("x", "x", "y")]
    (ax,) = curves(runs, ["x", "y"], "bits per byte").axes
    colours = [line.get_color() for line in ax.lines]
    assert colours[0] == colours[1] != colours[2]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["x", "y"]


def test_the_drawings_are_well_formed(shown: str) -> None:
    start = shown.index("<svg")
    ElementTree.fromstring(shown[start : shown.index("</svg>") + len("</svg>")])
