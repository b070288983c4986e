"""The fingerprint of a global batch does not depend on how many ranks see it, or how they divide the model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plinth.launch.parameters import Launch
from plinth.training.config import RunConfig
from plinth.training.data import StepBatch, fingerprint_of
from plinth.training.parallel.topology import RankPlace, place_of
from plinth.training.parameters.parallel import Parallel

sys.path.insert(0, str(Path(__file__).parent))
import parallel_runs


def total(config: RunConfig, step: int) -> tuple[int, ...]:
    """Return the sum over the ranks."""
    places = [place_of(config.parallel, config.ranks, rank) for rank in range(config.ranks)]
    words = [fingerprint_of(parallel_runs.batch_of(config, step, rank), place) for rank, place in enumerate(places)]
    return tuple(sum(column) % 2**32 for column in zip(*words, strict=True))


@pytest.mark.parametrize(
    ("ranks", "micro", "parallel"),
    [
        (1, 1, Parallel()),
        (2, 4, Parallel()),
        (2, 1, Parallel()),
        (4, 2, Parallel()),
        (2, 4, Parallel(tensor=2)),
        (4, 2, Parallel(sequence=2)),
        (4, 2, Parallel(pipeline=2)),
        (8, 2, Parallel(tensor=2, sequence=2)),
    ],
)
def test_same_on_any_number_of_ranks(
    make: Callable[..., RunConfig], ranks: int, micro: int, parallel: Parallel
) -> None:
    alone = make(launch=Launch(ranks=1), micro_batch_sequences=8)
    divided = make(launch=Launch(ranks=ranks), micro_batch_sequences=micro, parallel=parallel)
    assert [total(divided, step) for step in (1, 2)] == [total(alone, step) for step in (1, 2)]
    assert total(alone, 1) != total(alone, 2)


def test_what_is_recorded_stays() -> None:
    """Timelines hold fingerprints that were made when a batch was three arrays of a value per token (version 0.3)."""
    random = np.random.default_rng(5)
    tokens = random.integers(0, 60_000, (2, 3, 17)).astype(np.uint16)
    segments = np.cumsum(random.random((2, 3, 17)) < 0.2, axis=-1)
    kept = random.random((2, 3, 16)) < 0.7
    recorded = {8: ((2905385289, 1501664828), (1674086818, 1440798258))}
    recorded[16] = ((3895286983, 3092741114), (3438831388, 916585034))
    for length, expected in recorded.items():
        batches = StepBatch.of(tokens, segments), StepBatch.of(tokens, segments, kept, int(kept.sum()))
        found = tuple(fingerprint_of(replace(batch, length=length), RankPlace(1, 0, 0, 0)) for batch in batches)
        assert found == expected


@pytest.mark.parametrize("field", ["tokens", "segments", "order", "scored"])
def test_sees_every_difference(make: Callable[..., RunConfig], field: str) -> None:
    config = make(launch=Launch(ranks=1), micro_batch_sequences=8)
    batch, place = parallel_runs.batch_of(config, 1, 0), place_of(config.parallel, 1, 0)
    tokens, segments, _ = batch.expanded()
    columns = {"tokens": tokens, "segments": segments, "scored": np.ones_like(tokens[..., 1:], dtype=bool)}
    batch = StepBatch.of(**columns, scored_tokens=columns["scored"].size)
    if field == "order":  # the same rows in another order
        columns = {name: column[:, ::-1] for name, column in columns.items()}
    else:
        columns[field] = columns[field].copy()
        columns[field][0, 3, 5] ^= 1
    other = StepBatch.of(**columns, scored_tokens=columns["scored"].size)
    assert fingerprint_of(other, place) != fingerprint_of(batch, place)
