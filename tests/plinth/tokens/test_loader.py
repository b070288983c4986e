from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.context import Context
from plinth.errors import IntegrityError, MissingError, RecipeError
from plinth.recipe import tokens as recipe
from plinth.storage.workspace import Workspace
from plinth.tokens import mixture
from plinth.tokens.loader import Batch, Loader
from plinth.tokens.order import Order
from plinth.tokens.packing import segments
from plinth.tokens.reader import ShardReader

Line = tuple[Order, dict[str, ShardReader]]


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory, made: SimpleNamespace) -> Line:
    ctx = Context(Workspace(tmp_path_factory.mktemp("loader")).ensure())
    _, _, shards = made.line(ctx, {"web": [made.texts(1, 50)], "code": [made.texts(2, 20)]}, tokens_per_shard=400)
    phases = (recipe.Phase(name="main", fraction=1.0, weights={"web": 2, "code": 1}),)
    params = recipe.Mixture(sequence_tokens=24, total_tokens=24 * 130, phases=phases, block_sequences=10)
    return Order(mixture.run(ctx, params, shards)), {b: ShardReader(ctx.store, m) for b, m in shards.items()}


def _global(line: Line, step: int, world: int, micro: int, batch: int = 8) -> np.ndarray:
    """The global batch of a step as `world` ranks load it."""
    ranks = [
        Loader(*line, global_batch=batch, micro_batch=micro, rank=r, world=world, prefetch=0) for r in range(world)
    ]
    return np.concatenate([made.tokens for loader in ranks for made in loader.step(step)])


def _same(one: Batch, two: Batch) -> bool:
    return (one.step, one.micro) == (two.step, two.micro) and all(
        np.array_equal(getattr(one, name), getattr(two, name)) for name in ("tokens", "segments", "buckets")
    )


@given(step=st.integers(0, 15), world=st.sampled_from([1, 2, 4]), micro=st.sampled_from([1, 2]))
@settings(max_examples=25, deadline=None)
def test_ranks_share_one_global_batch(line: Line, step: int, world: int, micro: int) -> None:
    assert np.array_equal(_global(line, step, world, micro), _global(line, step, 1, 8))


def test_arrays_are_the_sequences_of_the_order(line: Line) -> None:
    order, readers = line
    for batch in Loader(order, readers, global_batch=8, micro_batch=4).batches(3, 5):
        refs = order.step(batch.step, 8)[4 * batch.micro :][:4]
        expected = [readers[ref.bucket].read(ref.start, ref.tokens) for ref in refs]
        assert (batch.tokens.dtype, batch.tokens.shape) == (np.int32, (4, 25))
        assert np.array_equal(batch.tokens, np.stack(expected))
        assert np.array_equal(batch.segments, segments(batch.tokens, 0))
        assert [order.buckets[bucket] for bucket in batch.buckets] == [ref.bucket for ref in refs]
        assert batch.wait_s >= 0


@given(first=st.integers(0, 16), prefetch=st.sampled_from([0, 1, 5]))
@settings(max_examples=12, deadline=None)
def test_resuming_anywhere_is_going_on(line: Line, first: int, prefetch: int) -> None:
    whole = list(Loader(*line, global_batch=8, micro_batch=2, prefetch=0).batches())
    rest = list(Loader(*line, global_batch=8, micro_batch=2, prefetch=prefetch).batches(first))
    assert len(whole) == 16 * 4
    assert len(rest) == (16 - first) * 4
    assert all(map(_same, rest, whole[first * 4 :]))


def test_a_run_repeats_nothing_within_an_epoch(line: Line) -> None:
    order, _ = line
    batches = Loader(*line, global_batch=10, micro_batch=10).batches()
    seen = [(int(b), row.tobytes()) for batch in batches for b, row in zip(batch.buckets, batch.tokens, strict=True)]
    web = order.buckets.index("web")
    own = [row for bucket, row in seen if bucket == web]
    assert len(own) < order.available[web]  # less than an epoch, so every sequence differs
    assert len(set(own)) == len(own) > 80


def test_leaving_early_ends_the_thread(line: Line) -> None:
    batches = Loader(*line, global_batch=8, micro_batch=2, prefetch=2).batches()
    next(batches)
    assert "loader" in {thread.name for thread in threading.enumerate()}
    batches.close()  # type: ignore[attr-defined]
    assert "loader" not in {thread.name for thread in threading.enumerate()}


def test_an_error_in_the_thread_reaches_the_consumer(line: Line) -> None:
    loader = Loader(*line, global_batch=8, micro_batch=8, prefetch=2)
    with pytest.raises(MissingError, match="no step 16"):
        list(loader.batches(15, 18))


@pytest.mark.parametrize(("world", "micro", "rank"), [(3, 1, 0), (2, 3, 0), (2, 2, 2), (1, 1, -1)])
def test_batches_that_do_not_divide_are_refused(line: Line, world: int, micro: int, rank: int) -> None:
    with pytest.raises(RecipeError, match="does not divide"):
        Loader(*line, global_batch=8, micro_batch=micro, rank=rank, world=world)


def test_other_shards_are_refused(line: Line) -> None:
    order, readers = line
    for wrong in ({"code": readers["code"]}, {"web": readers["code"], "code": readers["web"]}):
        with pytest.raises(IntegrityError, match="not those the mixture was made from"):
            Loader(order, wrong, global_batch=8, micro_batch=2)
