"""Sweeps of one key: arms from values, the optimum with an interval; the critical batch from gradient noise."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plinth.errors import RecipeError
from plinth_lab.experiments.arms import Sweep, SweepOptimum, name_of, optima
from plinth_lab.experiments.effects import ArmScores
from plinth_lab.experiments.measure import NoiseScale, of_steps, pair
from plinth_lab.experiments.page import page
from tests.plinth_lab.experiments.test_arms import FILE, load

RATES = Sweep(key="training.optimizer.lr", low=1e-3, high=1.6e-2, points=5)
TEST = FILE[FILE.index("test:") : FILE.index("arms:")]
ARMS = FILE[FILE.index("arms:") : FILE.index("sizes:")]


def test_a_range_is_geometric_and_has_an_arm_a_value() -> None:
    assert RATES.swept() == (0.001, 0.002, 0.004, 0.008, 0.016)
    assert list(RATES.arms()) == ["at-0-001", "at-0-002", "at-0-004", "at-0-008", "at-0-016"]
    assert RATES.arms()["at-0-004"] == {"training": {"optimizer": {"lr": 0.004}}}
    assert [name_of(value) for value in (8, 1e-5, "wsd-sqrt", True)] == ["at-8", "at-1e-05", "at-wsd-sqrt", "at-true"]


@pytest.mark.parametrize(
    "wrong", [{}, {"low": 1.0}, {"low": 2.0, "high": 1.0}, {"values": (1,)}, {"low": 1, "high": 2, "values": (1, 2)}]
)
def test_a_sweep_has_a_range_or_values(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Sweep(key="training.optimizer.lr", **wrong)


@pytest.mark.parametrize(
    ("key", "values", "found"),
    [
        ("training.optimizer.lr", "[1e-3, 2e-3, 4e-3]", lambda recipe: recipe.training.optimizer.lr),
        ("training.global_batch_sequences", "[8, 16, 32]", lambda recipe: recipe.training.global_batch_sequences),
        ("training.optimizer.schedule", "[wsd, cosine]", lambda recipe: recipe.training.optimizer.schedule),
        ("training.guard.enabled", "[true, false]", lambda recipe: recipe.training.guard.enabled),
    ],
)
def test_a_file_becomes_runs(tmp_path: Path, key: str, values: str, found: Callable[[Any], object]) -> None:
    old = FILE[FILE.index("base:") : FILE.index("sizes:")]
    new = old.replace("base: plain\n", "").replace(ARMS, f"sweep: {{key: {key}, values: {values}}}\n")
    experiment, arms = load(tmp_path, old, new)
    assert experiment.sweep is not None
    swept = experiment.sweep.swept()
    assert experiment.base == list(experiment.arms)[len(swept) // 2]
    assert [found(one.recipe) for one in arms[: len(swept)]] == list(swept)
    assert len(arms) == len(swept) * 4


def test_wrong_sweeps_are_named_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="`sweep` already defines the arms"):
        load(tmp_path, "seeds:", "sweep: {key: training.optimizer.lr, low: 1e-3, high: 1e-2}\nseeds:")
    with pytest.raises(RecipeError, match=r"words.yaml:10.*sweep"):
        load(tmp_path, ARMS, "sweep: {key: training.optimizer.lr, low: 1.0}\n")
    key = "training.optimizer.rate"
    with pytest.raises(RecipeError, match=r"words.yaml:\d+.*rate"):
        load(tmp_path, f"base: plain\n{TEST}{ARMS}", f"{TEST}sweep: {{key: {key}, low: 1, high: 2}}\n")


def scores(best: float, seeds: int, noise: float = 0.0) -> list[ArmScores]:
    draw = np.random.default_rng(1)
    names, size = np.array(["a", "b"]), np.full(2, 100.0)
    return [
        ArmScores(name, "one", seed, "finished", "", names, names, size,
                  size * (2 + 0.1 * math.log(value / best) ** 2 + noise * draw.standard_normal()))
        for seed in range(seeds)
        for name, value in zip(RATES.arms(), (0.001, 0.002, 0.004, 0.008, 0.016), strict=True)
    ]  # fmt: skip


def test_the_optimum_of_parabolas_is_exact_and_noise_widens_it() -> None:
    (exact,) = optima(RATES, scores(5e-3, 3))
    assert exact.optimum is not None
    assert (exact.best, exact.optimum.value) == ("at-0-004", pytest.approx(5e-3, rel=1e-9))
    (noisy,) = optima(RATES, scores(5e-3, 5, 0.003))
    assert noisy.optimum is not None
    assert noisy.optimum.low < 5e-3 < noisy.optimum.high
    assert 1.01 < noisy.optimum.high / noisy.optimum.low < 2


def test_no_optimum_is_claimed_at_an_end_or_of_one_seed() -> None:
    (edge,) = optima(RATES, scores(5e-2, 3))
    assert (edge.best, edge.optimum) == ("at-0-016", None)
    assert "at an end" in edge.why
    (alone,) = optima(RATES, scores(5e-3, 1))
    assert (alone.optimum, alone.why) == (None, "an interval needs several seeds")
    (lost,) = optima(RATES, [ArmScores("at-0-001", "one", 1, "failed", "x")])
    assert "no value finished" in lost.why
    assert optima(Sweep(key="training.optimizer.schedule", values=("wsd", "cosine")), scores(5e-3, 3)) == []


def test_the_noise_scale_of_known_gradients() -> None:
    # |G|^2 = 4 and tr(S) = 1000: squared norms are 4 + 1000 / B
    assert pair(4 + 1000 / 50, 4 + 1000 / 200, 50, 200) == (pytest.approx(1000), pytest.approx(4))
    draw = np.random.default_rng(0)
    true = np.full(64, 0.25)  # |G|^2 = 4

    def step() -> dict[str, Any]:
        micro = true + draw.standard_normal((8, 64)) * math.sqrt(1000 / 64 / 50)
        by_layer = [math.sqrt(float((micro[:, part] ** 2).sum(axis=1).mean())) for part in (slice(40), slice(40, 64))]
        return {"layers": {"grad_norm": by_layer}, "grad_norm": float(np.linalg.norm(micro.mean(axis=0)))}

    found = of_steps([(step(), 400) for _ in range(60)], 50)
    assert found is not None
    assert found.batch_tokens == 400
    assert found.tokens.low < 250 < found.tokens.high
    assert found.tokens.high / found.tokens.low < 1.5


def test_no_noise_scale_without_two_batch_sizes_or_enough_steps() -> None:
    event = {"layers": {"grad_norm": [3.0]}, "grad_norm": 2.0}
    assert of_steps([(event, 400)] * 9, 50) is not None
    assert of_steps([(event, 50)] * 9, 50) is None
    assert of_steps([(event, 400)] * 4, 50) is None
    assert of_steps([({"grad_norm": 2.0}, 400)] * 9, 50) is None
    assert of_steps([({"layers": {"grad_norm": [None]}, "grad_norm": 2.0}, 400)] * 9, 50) is None
    assert of_steps([({"layers": {"grad_norm": [9.0]}, "grad_norm": 2.0}, 400)] * 9, 50) is None  # all noise


def test_the_page_has_both() -> None:
    told, given = optima(RATES, scores(5e-3, 3)), scores(5e-3, 3)
    assert told[0].optimum is not None
    noise = {"run-a": NoiseScale(tokens=told[0].optimum, batch_tokens=2048)}
    shown = page("s", "q", "bits per byte", "at-0-004", RATES.arms(), given, [], optima=told, noise=noise)
    for said in ('id="sweep"', "0.005", 'id="noise"', "run-a", "training.optimizer.lr"):
        assert said in shown, said
    lacking = [SweepOptimum(size="one", key="a.b", why="one seed")]
    assert "one seed" in page("s", "q", "bits per byte", "at-0-004", RATES.arms(), given, [], optima=lacking)
