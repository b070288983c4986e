"""Hyperparameters by rule, and overlays that a recipe takes."""

import pytest
from pydantic import ValidationError

from plinth.model.architectures import flops_exact
from plinth.model.parameters import Model
from plinth.model.sparsity import Experts
from plinth.training.parameters.run import Training
from plinth_lab.scaling.ladder import LadderDesign, batch_tokens, learning_rate, price, rungs

DESIGN = LadderDesign(sizes=("10m", "60m"), vocab_size=16384, sequence_tokens=1024)


def test_rules_at_their_reference_and_at_eight_times_the_size() -> None:
    assert batch_tokens(108_000_000) == 2048 * 160
    assert learning_rate(108_000_000) == pytest.approx(0.00235, rel=1e-14)
    assert batch_tokens(8 * 108_000_000) == 4 * 2048 * 160
    assert learning_rate(8 * 108_000_000) == pytest.approx(0.00235 / 2, rel=1e-14)


def test_overlays_are_what_training_takes() -> None:
    ladder = rungs(DESIGN)
    assert [rung.name for rung in ladder] == [f"{size}-{h}x" for size in ("10m", "60m") for h in ("0_5", "1", "2", "4")]
    for rung in ladder:
        training = Training.model_validate(rung.overlay["training"])
        batch = training.global_batch_sequences * 1024
        assert training.global_batch_sequences % 4 == 0
        assert rung.tokens % batch == 0
        assert rung.tokens == rung.overlay["mixture"]["total_tokens"]
        assert training.optimizer.beta2 == 0.99
        assert rung.flops == flops_exact(training.model, 16384, 1024) * rung.tokens
    size = ladder[:4]
    assert [rung.tokens / size[0].tokens for rung in size] == pytest.approx([1, 2, 4, 8], rel=0.05)
    warm = [Training.model_validate(rung.overlay["training"]).optimizer.warmup(rung.tokens) for rung in size]
    assert warm == pytest.approx([warm[0]] * 4)
    assert price(ladder) == sum(rung.flops for rung in ladder)


def test_large_batches_have_the_other_beta2() -> None:
    (rung,) = rungs(LadderDesign(sizes=("1b",), horizons=(1.0,), vocab_size=128256, sequence_tokens=4096))
    assert rung.overlay["training"]["optimizer"]["beta2"] == 0.95


def test_experts_keep_the_active_parameters_of_the_size() -> None:
    design = DESIGN.model_copy(update={"experts": Experts(count=32, active=4), "horizons": (1.0,)})
    for mixed, dense in zip(rungs(design), rungs(DESIGN.model_copy(update={"horizons": (1.0,)})), strict=True):
        model = Training.model_validate(mixed.overlay["training"]).model
        assert model.experts is not None
        assert (model.experts.count, model.experts.active) == (32, 4)
        assert mixed.params == pytest.approx(dense.params, rel=0.02)
        assert mixed.total_params > 3 * mixed.params
        assert dense.total_params == dense.params
        assert mixed.flops == flops_exact(model, 16384, 1024) * mixed.tokens


def test_mup_has_one_rate_for_all_widths() -> None:
    design = DESIGN.model_copy(update={"mup_base_dim": 256, "mup_lr": 0.004})
    for rung in rungs(design):
        training = Training.model_validate(rung.overlay["training"])
        assert training.optimizer.lr == 0.004
        assert training.model.mup is not None
        assert training.model.width_multiplier == Model(preset=rung.name.split("-")[0]).dim / 256
    with pytest.raises(ValidationError, match="needs both"):
        LadderDesign(sizes=("10m",), vocab_size=1, sequence_tokens=8, mup_lr=0.1)
