"""A ladder as an experiment: horizons of its runs, the forecast of the size that is held out, and its truth."""

import math
from pathlib import Path

import numpy as np
import pytest

from plinth.errors import RecipeError
from plinth.records import Manifest
from plinth_lab.experiments import answer, measure
from plinth_lab.experiments import stages as wiring
from plinth_lab.experiments.arms import Arm, Experiment
from plinth_lab.experiments.page import page
from plinth_lab.experiments.run import _in_turn
from plinth_lab.scaling.fit import ScalingRun, fit, read_table, weights_of
from plinth_lab.scaling.ladder import LadderForecast, backtest, forecast, horizons, outcomes, size
from plinth_lab.scaling.law import CORRECTED, ScalingLaw
from plinth_lab.scaling.predict import optimum, predict
from tests.plinth_lab.experiments.test_arms import load
from tests.plinth_lab.scaling.ladders import ladder

LAW = ScalingLaw(E=0.8, A=30, B=300, alpha=0.4, beta=0.5)
SIZES = """sizes:
  a: {training: {model: {dim: 16, heads: 1, ffn_dim: 32}}}
  b: {training: {model: {dim: 32, heads: 1, ffn_dim: 64}}}
  c: {training: {model: {dim: 64, heads: 1, ffn_dim: 128}}}
  d: {training: {model: {dim: 96, heads: 1, ffn_dim: 256}}}
  e: {training: {model: {dim: 128, heads: 1, ffn_dim: 384}}}
"""
LADDER = """name: climb
question: What comes next?
recipe: tiny
base: plain
test:
  prose: {path: test/prose.jsonl}
common:
  training: {optimizer: {decay_fraction: 0.2, horizons: [0.125, 0.25, 0.5]}}
arms:
  plain: {}
"""
TAIL = "ladder: {held_out: e}\nseeds: [1]\n"


def climbing(folder: Path, tail: str = TAIL) -> tuple[Experiment, tuple[Arm, ...]]:
    from plinth_jobs.recipes import FOLDER
    from plinth_lab.experiments import arms

    path = folder / "climb.yaml"
    path.write_text(LADDER + SIZES + tail)
    return arms.load(path, FOLDER)


def ran(arm: Arm, noise: float = 0.0, status: str = "finished") -> Manifest:
    """A run whose curve follows the law at its horizons, with a checkpoint between two of them that does not."""
    draw = np.random.default_rng(size(arm))
    curve = [(at, at, LAW.loss(size(arm), at) * math.exp(noise * draw.standard_normal())) for at in arm.horizons]
    curve.insert(2, (1, arm.tokens * 3 // 8, 9.0))
    return measure.kept(arm, status, "", {}, [], tokens=arm.tokens, curve=curve)


def test_a_forecast_is_of_the_smaller_sizes_and_meets_its_truth(tmp_path: Path) -> None:
    experiment, arms = climbing(tmp_path)
    made = {one.asset: ran(one, 0.0005) for one in arms}
    smaller = {one.asset: made[one.asset] for one in arms if one.size != "e"}
    stored = answer.forecast_of(experiment, arms, smaller)  # from their manifests alone
    found = LadderForecast.model_validate(stored.stats)
    assert (len(found.runs), found.fit.trunks, len(found.predictions)) == (16, 4, 4)
    assert set(stored.inputs) == set(smaller)
    last = found.predictions[-1]
    assert last.loss.value == pytest.approx(LAW.loss(size(arms[-1]), arms[-1].tokens), rel=0.003)
    assert [one.run.params for one in found.backtest] == [size(arms[-2])] * 4
    assert all(abs(one.outcome.error) < 0.003 for one in found.backtest)
    truths = outcomes(found, arms, made)
    assert [one.run.tokens for one in truths] == list(arms[-1].horizons)
    assert all(abs(one.outcome.error) < 0.003 for one in truths)


def test_checkpoints_between_horizons_and_runs_that_failed_are_no_points(tmp_path: Path) -> None:
    _, arms = climbing(tmp_path)
    assert [one.tokens for one in horizons(arms[0], ran(arms[0]))] == list(arms[0].horizons)
    assert horizons(arms[0], ran(arms[0], status="diverged")) == []
    lost = {one.asset: ran(one, status="failed") for one in arms}
    found = forecast(arms, lost, "e")
    assert (found.fit, found.predictions, found.why.partition(":")[0]) == (
        None, (), "too few runs to fit a scaling law",
    )  # fmt: skip


def test_the_forecast_stands_between_the_sizes_it_is_of_and_the_one_it_foretells(tmp_path: Path) -> None:
    experiment, arms = climbing(tmp_path, TAIL.replace("[1]", "[1, 2]"))
    stages = {stage.asset: stage for stage in wiring.of(experiment, arms)}
    held, told = [one.asset for one in arms if one.size == "e"], wiring.forecast_of(experiment)
    assert list(stages)[8:] == [told, *held, wiring.effects_of(experiment)]
    assert set(stages[told].deps) == {one.asset for one in arms} - set(held)
    assert [stages[one].deps for one in held] == [(told,), (told,)]
    assert told in stages[wiring.effects_of(experiment)].deps
    first, then = _in_turn(experiment, arms)
    assert ([one.size for one in first[0]], first[1]) == (list("abcd") * 2, True)
    assert ([one.size for one in then[0]], then[1]) == (["e", "e"], False)


def test_horizons_of_one_training_are_weighed_as_one() -> None:
    runs = ladder(0.003)
    joint = [run.model_copy(update={"trunk": f"{run.params:.0f}"}) for run in runs]
    weights = weights_of(joint, 50, 0)
    assert weights.sum(axis=1) == pytest.approx(20)
    assert (weights.reshape(50, 5, 4) == weights[:, ::4].reshape(50, 5, 1)).all()
    assert len(np.unique(weights_of(runs, 50, 0)[0])) == 20
    apart, together = fit(runs, draws=200), fit(joint, draws=200)
    assert (apart.fit.trunks, together.fit.trunks) == (20, 5)
    assert together.fit.law == apart.fit.law
    assert together.spread == pytest.approx(apart.spread * math.sqrt(5 / 4))


#: `plinth experiment run ladder`, as recorded in docs/scaling.md: bits per byte by parameters and horizon.
HORIZONS = (102400, 204800, 409600, 819200)
RECORDED = {
    68328: (3.5754, 3.3055, 3.0810, 2.9103),
    100320: (3.5551, 3.2718, 3.0196, 2.8446),
    174672: (3.5095, 3.2083, 2.9420, 2.7350),
    269760: (3.5027, 3.1951, 2.9066, 2.6859),
    508320: (3.4363, 3.1304, 2.8446, 2.6296),
}


def test_four_sizes_that_were_trained_foretell_the_fifth_within_three_percent() -> None:
    """A real ladder; its forecast was stored before the fifth size was started, and is made again of its table."""
    runs = [
        ScalingRun(params=params, tokens=tokens, loss=loss, trunk=str(params))
        for params, losses in RECORDED.items()
        for tokens, loss in zip(HORIZONS, losses, strict=True)
    ]
    small, held = runs[:16], runs[16:]
    fitted = fit(small, draws=100)
    assert fitted.fit.statuses == ("converged",)
    for run in held:
        foretold = predict(fitted, run.params, run.tokens).loss
        assert foretold.low < run.loss < foretold.high
        assert max(foretold.high - foretold.value, foretold.value - foretold.low) < 0.03 * foretold.value
    assert backtest(small, draws=100) == ()  # three sizes determine no law here


def test_the_optimum_of_a_budget_has_an_interval() -> None:
    exact = optimum(fit(ladder(), draws=40), 1e21)
    truth = CORRECTED.optimum(1e21)
    assert exact.params.value == pytest.approx(truth.params, rel=1e-6)
    assert exact.tokens.value == pytest.approx(truth.tokens, rel=1e-6)
    searched = optimum(fit(ladder(0.003, 3), draws=20), 1e21, inference_tokens=1e-6)
    closed = optimum(fit(ladder(0.003, 3), draws=20), 1e21)
    assert (searched.params.low, searched.tokens.high) == pytest.approx((closed.params.low, closed.tokens.high))
    noisy = optimum(fit(ladder(0.003, 3), draws=200), 1e21)
    assert noisy.params.low < truth.params < noisy.params.high
    assert noisy.tokens.low < truth.tokens < noisy.tokens.high
    assert noisy.params.high / noisy.params.low > 1.05 > exact.params.high / exact.params.low


def test_a_table_names_trainings() -> None:
    (run,) = read_table("params,tokens,loss,trunk,p\n1,2,3,a,0.5\n").runs
    assert run == ScalingRun(params=1, tokens=2, loss=3, trunk="a", probes={"p": 0.5})


@pytest.mark.parametrize(
    "tail", ["seeds: [1]\n", "ladder: {held_out: x}\n", "ladder: {held_out: e}\nstop_losing: true\n"]
)
def test_ladders_that_cannot_be_are_refused(tmp_path: Path, tail: str) -> None:
    with pytest.raises(RecipeError, match="ladder"):
        climbing(tmp_path, tail)
    with pytest.raises(RecipeError, match="expected a single arm"):
        load(tmp_path, "seeds: [3, 5]", "ladder: {held_out: wide}")


def test_the_page_has_forecast_truth_and_figures(tmp_path: Path) -> None:
    _, arms = climbing(tmp_path)
    made = {one.asset: ran(one, 0.0005) for one in arms}
    found = forecast(arms, made, "e", draws=30)
    lost = [measure.scores_of(None, measure.kept(one, "failed", "x", {}, [])) for one in arms]  # type: ignore[arg-type]
    told = ("climb", "What?", "bits per byte", "plain", {"plain": {}}, lost, [])
    shown = page(*told, ladder=(found, outcomes(found, arms, made)))
    known = ('id="ladder"', "16 points from 4 training runs", "Status of the fit: ", "alpha", ">yes<")
    assert "optimal N (parameters) for" in shown
    assert "No decision uses the curves" in shown
    for said in (*known, "Backtest"):
        assert said in shown, said
    assert shown.count('role="img"') == 2
    assert "not run" in page(*told, ladder=(found, []))
    assert "No scaling law: too few" in page(*told, ladder=(LadderForecast(held_out="e", runs=(), why="too few"), []))
