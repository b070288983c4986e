"""Optima of the law of loss: published tokens per parameter, identities, and what is refused."""

import math

import numpy as np
import pytest

from plinth.errors import RequestError
from plinth_lab.scaling.law import CORRECTED, DataReuse, ScalingLaw

REUSE = DataReuse(unique_tokens=3e9)
#: As published, with the digits of their source.
HOFFMANN = ScalingLaw(
    E=math.exp(0.5267228), A=math.exp(6.0073404), B=math.exp(6.0179186), alpha=0.33917084, beta=0.2849083
)


def exponent(law: ScalingLaw) -> float:
    """Exponent a of the budget in the optimal number of parameters, N* = G (C/6)^a."""
    return law.beta / (law.alpha + law.beta)


def factor(law: ScalingLaw) -> float:
    """Factor G in N* = G (C/6)^a and D* = (C/6)^(1 - a) / G."""
    return float((law.alpha * law.A / (law.beta * law.B)) ** (1 / (law.alpha + law.beta)))


@pytest.mark.parametrize(("flops", "ratio"), [(1e18, 25.9), (1e21, 21.4), (5.9e23, 17.9)])
def test_the_corrected_constants_give_the_published_tokens_per_parameter(flops: float, ratio: float) -> None:
    found = CORRECTED.optimum(flops)
    assert round(found.tokens_per_parameter, 1) == ratio
    assert found.training_flops == pytest.approx(flops, rel=1e-12)
    closed = factor(CORRECTED) * (flops / 6) ** exponent(CORRECTED)
    assert found.params == pytest.approx(closed, rel=1e-10)


def test_hoffmanns_constants_with_their_published_exponent() -> None:
    """The 72.9 tokens per parameter of Besiroglu et al. take the exponent that Hoffmann et al. print apart (0.454 to
    0.455), at 10^23.75 FLOPs. The constants themselves imply 0.4565, and 58.8."""
    flops = 10**23.75
    printed = (flops / 6) ** (1 - 2 * 0.4545) / factor(HOFFMANN) ** 2
    assert printed == pytest.approx(72.86525718715193, rel=1e-9)
    assert round(exponent(HOFFMANN), 4) == 0.4565
    assert round(HOFFMANN.optimum(flops).tokens_per_parameter, 1) == 58.8


@pytest.mark.parametrize("inference", [0.0, 1e12])
@pytest.mark.parametrize("reuse", [None, REUSE])
def test_no_neighbour_is_better(inference: float, reuse: DataReuse | None) -> None:
    best = CORRECTED.optimum(1e21, inference_tokens=inference, reuse=reuse)
    assert best.flops == pytest.approx(1e21, rel=1e-12)
    for factor in (0.99, 1.01):
        params = best.params * factor
        tokens = 1e21 / (6 * params) - inference / 3
        other = CORRECTED.loss(params, tokens if reuse is None else reuse.effective(tokens))
        assert other > best.loss


def test_inference_asks_for_smaller_models_and_repetition_for_larger_ones() -> None:
    plain = CORRECTED.optimum(1e21)
    assert CORRECTED.optimum(1e21, inference_tokens=1e12).params < plain.params
    scarce = CORRECTED.optimum(1e21, reuse=REUSE)
    assert scarce.params > plain.params
    assert scarce.loss > plain.loss
    assert scarce.epochs == pytest.approx(scarce.tokens / 3e9)
    enough = CORRECTED.optimum(1e21, reuse=DataReuse(unique_tokens=plain.tokens * 2))
    assert enough.params == pytest.approx(plain.params, rel=1e-12)


def test_repeated_tokens_are_worth_what_muennighoff_says() -> None:
    assert REUSE.effective(3e9) == 3e9
    for epochs in (1.5, 4, 40):
        repeated = epochs - 1
        expected = 3e9 * (1 + 15.387756 * (1 - math.exp(-repeated / 15.387756)))
        assert REUSE.effective(3e9 * epochs) == pytest.approx(expected, rel=1e-14)
        step = 1e-6
        slope = math.log(REUSE.effective(3e9 * epochs * (1 + step)) / expected) / math.log1p(step)
        assert REUSE.elasticity(3e9 * epochs) == pytest.approx(slope, rel=1e-5)
    assert REUSE.effective(1e15) == pytest.approx(3e9 * (1 + 15.387756))


def test_losses_of_many_runs_at_once() -> None:
    params, tokens = np.array([1e8, 1e9]), np.array([1e9, 1e10])
    singly = [CORRECTED.loss(1e8, 1e9), CORRECTED.loss(1e9, 1e10)]
    assert CORRECTED.loss(params, tokens).tolist() == pytest.approx(singly)


def test_what_no_model_can_do_is_refused() -> None:
    with pytest.raises(RequestError, match="no optimum"):
        ScalingLaw(E=1, A=0, B=1, alpha=0.3, beta=0.3).optimum(1e20)
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(RequestError, match="budget"):
            CORRECTED.optimum(wrong)
