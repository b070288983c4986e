"""The law from runs: planted surfaces, outliers, statuses, and the coverage of predictions."""

import numpy as np
import pytest

from plinth.errors import RequestError
from plinth_lab.scaling import fit as module
from plinth_lab.scaling.fit import ScalingRun, budgets, fit
from plinth_lab.scaling.law import CORRECTED, ScalingLaw, huber
from tests.plinth_lab.scaling.ladders import MULTIPLES, SIZES, ladder

NAMES = ("E", "A", "B", "alpha", "beta")


@pytest.mark.parametrize("law", [CORRECTED, ScalingLaw(E=0.6, A=30, B=900, alpha=0.25, beta=0.45)])
def test_surfaces_without_noise_are_recovered(law: ScalingLaw) -> None:
    found = fit(ladder(law=law), draws=20)
    assert found.fit.statuses == (module.CONVERGED,)
    for name in NAMES:
        assert getattr(found.law, name) == pytest.approx(getattr(law, name), rel=1e-8)


def test_the_objective_is_the_sum_and_no_neighbour_has_less() -> None:
    runs = ladder(noise=0.005, seed=1)
    found = fit(runs, draws=2)

    def objective(law: ScalingLaw) -> float:
        residuals = np.log([run.loss for run in runs]) - np.log([law.loss(run.params, run.tokens) for run in runs])
        return float(huber(residuals, 1e-3).sum())

    least = objective(found.law)
    assert least == pytest.approx(found.fit.objective, rel=1e-9)
    for name in NAMES:
        for factor in (0.999, 1.001):
            moved = found.law.model_copy(update={name: getattr(found.law, name) * factor})
            assert objective(moved) > least


def test_outliers_hardly_move_the_law() -> None:
    runs = ladder(noise=0.0005)
    wild = [run.model_copy(update={"loss": run.loss * (1.5 if i in (3, 11) else 1)}) for i, run in enumerate(runs)]
    clean, found = fit(runs, draws=2).law, fit(wild, draws=2).law
    assert found.alpha == pytest.approx(clean.alpha, rel=0.05)
    assert found.loss(5e9, 1e11) == pytest.approx(clean.loss(5e9, 1e11), rel=0.005)


def test_one_ratio_of_tokens_to_parameters_determines_no_law() -> None:
    runs = [run for run in ladder() if round(run.tokens / run.params) == 20]
    runs += [ScalingRun(params=n, tokens=20 * n, loss=CORRECTED.loss(n, 20 * n)) for n in (1e9, 2e9)]
    found = fit(runs, draws=2)
    assert module.ILL_CONDITIONED in found.fit.statuses
    assert found.fit.law is None
    with pytest.raises(RequestError, match="do not determine a scaling law"):
        _ = found.law


def test_an_exponent_at_the_edge_is_named() -> None:
    """A loss that falls off a cliff with the size: no exponent is steep enough."""
    points = [(n, n * m) for n in SIZES.tolist() for m in MULTIPLES]
    runs = [ScalingRun(params=n, tokens=d, loss=2 + (3.0 if n < 4e7 else 0.0) + 400 * d**-0.35) for n, d in points]
    found = fit(runs, draws=2)
    assert module.GRID_EDGE in found.fit.statuses
    assert found.fit.law is None


def test_a_term_that_the_runs_do_not_show_is_named() -> None:
    points = [(n, n * m) for n in SIZES.tolist() for m in MULTIPLES]
    flat = [ScalingRun(params=n, tokens=d, loss=1.5 + 480 * n**-0.3) for n, d in points]
    found = fit(flat, draws=2).fit
    assert module.ON_BOUND in found.statuses
    assert found.law is None


def test_without_a_floor_the_law_is_that_of_the_other_terms_and_says_so() -> None:
    points = [(n, n * m) for n in SIZES.tolist() for m in MULTIPLES]
    runs = [ScalingRun(params=n, tokens=d, loss=480 * n**-0.3 + 2100 * d**-0.37) for n, d in points]
    found = fit(runs, draws=20)
    assert found.fit.statuses == (module.NO_FLOOR,)
    assert found.fit.condition < module.ILL
    assert found.law.E == 0.0
    for name, value in {"A": 480, "alpha": 0.3, "B": 2100, "beta": 0.37}.items():
        assert getattr(found.law, name) == pytest.approx(value, rel=1e-4)
    noisy = ladder(0.003, 5, ScalingLaw(E=0, A=480, B=2100, alpha=0.3, beta=0.37))
    assert fit(noisy, draws=40).fit.intervals["E"].high > 0.01  # draws that have a floor


def test_few_sizes_are_named_and_few_budgets_refused() -> None:
    two = [run for run in ladder(noise=0.001) if run.params in (SIZES[0], SIZES[4])]
    assert module.FEW_SIZES in fit(two, draws=2).fit.statuses
    budget = [ScalingRun(params=n, tokens=1e17 / n, loss=3.0) for n in (1e7, 2e7, 3e7, 4e7, 5e7, 6e7)]
    with pytest.raises(RequestError, match="6 runs of 1 budgets"):
        fit(budget)
    with pytest.raises(RequestError, match="5 runs of 5 budgets"):
        fit(ladder()[::4])
    assert budgets([1e18, 1.05e18, 1e19, 1e20]) == 3


def test_draws_are_seeded_and_none_loses_a_size() -> None:
    first, again, other = (fit(ladder(noise=0.005), draws=50, seed=seed) for seed in (0, 0, 1))
    assert first.fit == again.fit
    assert (first.drawn == again.drawn).all()
    assert (first.drawn != other.drawn).any()
    assert first.fit.unconverged_draws == 0
    low, high = first.fit.intervals["alpha"].low, first.fit.intervals["alpha"].high
    assert low < first.law.alpha < high
