"""Ranks that divide one model read its rows once, and take the same ones whatever happens."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import poisoned_corpus
import pytest

from plinth.errors import IntegrityError
from plinth.launch.parameters import Launch
from plinth.storage.blob_cache import RemoteBlobs
from plinth.tokens.shards.parameters import Reading
from plinth.training.config import RunConfig
from plinth.training.data import Batches, StepBatch, open_batches
from plinth.training.engine.batches import replica_batches
from plinth.training.parameters.parallel import Parallel
from tests.ranks import run_ranks

sys.path.insert(0, str(Path(__file__).parent))
import synthetic

pytestmark = pytest.mark.slow


def _tokens(batch: StepBatch) -> Any:
    whole = batch.expanded()
    return whole.tokens.copy(), whole.segments.copy()


def read_all(configs: list[RunConfig]) -> list[tuple[list[Any], int]]:
    """On one rank: every batch of each configuration, and the bytes of shards that this process read for them."""
    from plinth.training.engine import engine

    rank, received, read = engine.join(configs[0]), [0], RemoteBlobs.read

    def counted(self: RemoteBlobs, *arguments: Any) -> bytes:
        data = read(self, *arguments)
        received[0] += len(data)
        return data

    RemoteBlobs.read = counted  # type: ignore[method-assign]
    found = []
    for config in configs:
        received[0] = 0
        batches = replica_batches(config, rank.index, partial(open_batches, config, rank.index))
        found.append(([_tokens(batch) for batch in batches(1)], received[0]))
    engine.leave()
    return found


@pytest.mark.exhaustive
def test_bytes_of_shards_are_those_of_one_rank(tmp_path: Path) -> None:
    reading = Reading(remote=str(tmp_path / "store"), cache=str(tmp_path / "cache"), fetch="span")
    one = poisoned_corpus.make(tmp_path, reading=reading).model_copy(update={"total_steps": 20})
    ((alone, read),) = run_ranks(1, read_all, [one])[0]
    assert len(alone) == 20
    assert read > 20 * poisoned_corpus.BATCH * poisoned_corpus.SEQUENCE * 2  # the blocks with the rows
    kinds = [Parallel(tensor=2), Parallel(pipeline=2), Parallel(sequence=2)]
    two = [one.model_copy(update={"launch": Launch(ranks=2), "parallel": kind}) for kind in kinds]
    first, second = run_ranks(2, read_all, two)
    for (ours, our_bytes), (theirs, their_bytes) in zip(first, second, strict=True):
        assert (our_bytes, their_bytes) == (read, 0)
        for found in (ours, theirs):
            for (tokens, segments), (expected, documents) in zip(found, alone, strict=True):
                assert np.array_equal(tokens, expected)
                assert np.array_equal(segments, documents)


def leave_and_fail(config: RunConfig) -> list[Any]:
    """On one rank: leave a stream in the middle, as a rollback does, read on from another step, meet an error."""
    from plinth.training.engine import engine

    rank = engine.join(config)

    def source(first_step: int) -> Iterator[StepBatch]:
        for step in range(first_step, 9):
            yield synthetic.batch_at(config, step, 0)
        raise IntegrityError("shard-00007.bin has changed")

    def opened() -> Batches:
        assert rank.index == 0, "only the first rank reads"
        return source

    batches = replica_batches(config, rank.index, opened)
    before = [_tokens(batch) for batch in islice(batches(1), 3)]
    stream = batches(2)
    again = [_tokens(next(stream)) for _ in range(2, 9)]
    with pytest.raises(IntegrityError, match=r"shard-00007\.bin has changed"):
        next(stream)
    engine.leave()
    return [before, again]


def test_a_stream_that_is_left_and_an_error_are_the_same_everywhere(make: Any) -> None:
    config = make(parallel=Parallel(tensor=2))
    for before, again in run_ranks(2, leave_and_fail, config):
        steps = [*range(1, 4), *range(2, 9)]
        expected = [_tokens(synthetic.batch_at(config, step, 0)) for step in steps]
        assert len(expected) == len(before) + len(again)
        assert all(np.array_equal(a, b) for a, b in zip([*before, *again], expected, strict=True))
