"""Padding is not scored, and every target that is counts the same: whatever the micro batches, ranks and stage."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean

import numpy as np
import partly_scored
import pytest

from plinth.launch.parameters import Launch
from plinth.training.config import RunConfig
from plinth.training.data import StepBatch, fingerprint_of
from plinth.training.parallel.topology import RankPlace
from plinth.training.parameters.parallel import Parallel
from tests.ranks import run_ranks


def test_weights_make_a_mean_of_means_the_mean_over_targets() -> None:
    random = np.random.default_rng(1)
    losses, kept = random.random((2, 3, 2, 8)), random.random((2, 3, 2, 8)) < 0.3  # [ranks, A, M, S]
    kept[0, 0] = [[True] * 8] * 2
    total = 0.0
    for rank in range(2):
        tokens = np.zeros((3, 2, 9), np.int32)
        weights = StepBatch.of(tokens, tokens, kept[rank], int(kept.sum())).weights(data_ranks=2)
        assert weights is not None
        total += mean(w * losses[rank, a][kept[rank, a]].mean() for a, w in enumerate(weights)) / 2
    assert total == pytest.approx(losses[kept].mean())
    assert StepBatch.of(tokens, tokens).weights(2) is None


def test_what_is_scored_is_part_of_the_fingerprint() -> None:
    tokens, kept = np.zeros((1, 2, 9), np.int32), np.ones((1, 2, 8), bool)
    place = RankPlace(0, 0, 0, 0)
    whole = fingerprint_of(StepBatch.of(tokens, tokens, kept, 16), place)
    kept[0, 0, 3] = False
    assert fingerprint_of(StepBatch.of(tokens, tokens, kept, 15), place) != whole


def _configs(make: Callable[..., RunConfig], ranks: int) -> dict[str, RunConfig]:
    kinds = {"one row": (1, Parallel(zero_stage=0)), "two rows, ZeRO-2": (2, Parallel(zero_stage=2))}
    if ranks == 2:
        kinds |= {"ZeRO-3": (4, Parallel(zero_stage=3)), "sequence": (2, Parallel(sequence=2))}
        kinds |= {"tensor": (2, Parallel(tensor=2)), "pipeline": (2, Parallel(pipeline=2))}
    return {
        name: make(micro_batch_sequences=micro, parallel=parallel, launch=Launch(ranks=ranks))
        for name, (micro, parallel) in kinds.items()
    }


@pytest.mark.parametrize("ranks", [1, 2])
def test_loss_and_gradient_are_those_of_the_scored_targets(make: Callable[..., RunConfig], ranks: int) -> None:
    configs = _configs(make, ranks)
    losses, norms = partly_scored.plain_run(next(iter(configs.values())))
    answers = run_ranks(ranks, partly_scored.train_all, configs)
    for name in configs:
        found = [mean(answer[name][0][step] for answer in answers) for step in range(partly_scored.STEPS)]
        assert found == pytest.approx(losses, abs=3e-6), name
        assert answers[0][name][1] == pytest.approx(norms, rel=2e-5), name
    assert max(losses) - min(losses) > 1e-3  # the steps differ, so that agreement is meaningful
