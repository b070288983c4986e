"""Inputs of the model equal the stored rows, for rows of any length."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plinth.model.loss import IGNORED
from plinth.tokens.reading.compact_batch import CompactBatch
from plinth.training.data import StepBatch
from plinth.training.engine.batches import expand_batch


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int32, np.int64])
def test_widened_rows_are_the_expanded_batch(dtype: type) -> None:
    random = np.random.default_rng(3)
    ids = random.integers(0, 1 << 16, (1, 4, 25)).astype(dtype)
    segments = np.cumsum(random.random(ids.shape) < 0.2, axis=-1)
    scored = random.random((1, 4, 24)) < 0.6
    scored[0, 1], scored[0, 2] = True, False
    for length in (24, 8, 1):
        for kept in (None, scored):
            whole = StepBatch.of(ids, segments, kept, None if kept is None else int(kept.sum()))
            tokens, numbers, counted = StepBatch(whole.micro, length, whole.scored_tokens).expanded()
            inputs, found, targets = expand_batch(whole.micro[0], length, torch.device("cpu"), segments=True)
            assert (inputs.dtype, targets.dtype) == (torch.int64, torch.int64)
            assert np.array_equal(inputs, tokens[0, :, :-1])
            expected = tokens[0, :, 1:] if counted is None else np.where(counted[0], tokens[0, :, 1:], IGNORED)
            assert np.array_equal(targets, expected)
            assert found is not None
            same = np.asarray(found[:, None] == found[:, :, None])
            assert np.array_equal(same, numbers[0, :, None, :-1] == numbers[0, :, :-1, None])
    assert expand_batch(CompactBatch.of(ids[0]), 24, torch.device("cpu"), segments=False).segments is None
