"""Buckets cut by length, weighted by key, in a curriculum, and loaded: the data match the recipe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plinth.compute.context import Context
from plinth.errors import RecipeError
from plinth.records import Manifest, bucket_of
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Curriculum, Mixture, Phase
from plinth.tokens.order.batch import documents_of_step, steps_of_document
from plinth.tokens.order.order import Order
from plinth.tokens.order.steps import BatchChange, schedule
from plinth.tokens.packing_layout import open_layouts
from plinth.tokens.reading.loader import Loader
from plinth.tokens.shards import shards
from plinth.tokens.shards.parameters import Shards, parse, streams_of_all
from plinth.tokens.shards.reader import open_streams

BLOCK, SEQUENCES = 20, 400
GROWING = (
    BatchChange(from_step=4, global_batch_sequences=24),
    BatchChange(from_tokens=8 * 180, global_batch_sequences=40),
)


@pytest.fixture
def cut(ctx: Context, made: SimpleNamespace) -> dict[str, Manifest]:
    trained, curated, _ = made.pipeline(ctx, {"web": [made.texts(1, 80)], "code": [made.texts(2, 60)]})
    params = Shards(tokens_per_shard=500, axes=("length",))
    return {bucket: shards.run(ctx, bucket, params, trained, own) for bucket, own in curated.items()}


def mixed(ctx: Context, cut: dict[str, Manifest], **fields: Any) -> Manifest:
    params = Mixture(
        sequence_tokens=8,
        total_tokens=8 * SEQUENCES,
        phases=(Phase(name="all", fraction=1.0, **fields),),
        block_sequences=BLOCK,
        max_epochs=1000.0,
    )
    made = mixture.run(ctx, params, cut)
    ctx.refs.save(made)
    return made


def test_a_selector_weighs_the_streams_of_every_bucket(ctx: Context, cut: dict[str, Manifest]) -> None:
    lengths = sorted({one.values["length"] for one in streams_of_all(cut)}, key=int)
    assert len(lengths) > 2
    made = mixed(ctx, cut, weights={f"length={lengths[-1]}": 3.0, "code": 1.0})
    names = list(made.stats["buckets"])
    assert {parse(name).bucket for name in names} == {"code", "web"}
    long = [name for name in names if parse(name).values["length"] == lengths[-1]]
    assert len(long) == 2
    order = Order(made)
    buckets = order.window(0, SEQUENCES).streams
    drawn = np.bincount(buckets, minlength=len(names))
    assert abs(int(drawn[[order.streams.index(name) for name in long]].sum()) - 0.75 * SEQUENCES) <= 1
    assert sorted(made.inputs) == ["code/shards", "web/shards"]
    for bucket in ("code", "web"):  # within the key by text
        own = made.stats["buckets"][f"{bucket}/length={lengths[-1]}"]
        other = sum(made.stats["buckets"][name]["sequences"] for name in long)
        assert own["needed"] == pytest.approx(0.75 * SEQUENCES * own["sequences"] / other, abs=1.5)


def test_short_first_then_long_and_the_loader_reads_them(ctx: Context, cut: dict[str, Manifest]) -> None:
    lengths = tuple(sorted({one.values["length"] for one in streams_of_all({"web": cut["web"]})}, key=int))
    plan = Curriculum(by="length", order=lengths)
    made = mixed(ctx, cut, weights={"web": 1.0}, curriculum=plan)
    order, readers = Order(made), open_streams(ctx.store, cut)
    layouts = open_layouts(ctx.store, ctx.refs.load, made, {name: readers[name].tokens for name in order.streams})
    loader = Loader(order, readers, layouts, global_batch=BLOCK, micro_batch=BLOCK, prefetch=0)
    means = []
    for step in range(loader.steps):
        batch = loader.batch(step)
        for row in (0, 7):
            ref = order.refs(order.step_window(step, BLOCK))[row]
            assert np.array_equal(batch.tokens[row], readers[ref.stream].read(ref.index * 8, 9))
        numbers = [np.log2(int(parse(order.streams[bucket]).values["length"])) for bucket in batch.streams]
        means.append(float(np.mean(numbers)))
    assert np.mean(means[:5]) + 0.25 < np.mean(means[-5:])
    natural = mixed(ctx, cut, weights={"web": 1.0}).stats["buckets"]
    for name, own in made.stats["buckets"].items():  # the curriculum moves text, and leaves amounts
        assert abs(own["needed"] - natural[name]["needed"]) <= 2


def test_an_unknown_value_names_the_nearest(ctx: Context, cut: dict[str, Manifest]) -> None:
    with pytest.raises(RecipeError, match="no stream is named length=12") as caught:
        mixed(ctx, cut, weights={"length=12": 1.0})
    assert "did you mean `length=1" in str(caught.value)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_growing_batch_is_the_same_on_any_number_of_ranks(
    ctx: Context, cut: dict[str, Manifest], prefetch: int
) -> None:
    made = mixed(ctx, cut, weights="natural")
    order, readers = Order(made), open_streams(ctx.store, cut)
    layouts = open_layouts(ctx.store, ctx.refs.load, made, {name: readers[name].tokens for name in order.streams})
    steps = schedule(SEQUENCES, 8, 8, GROWING)
    whole = order.window(0, steps.used)
    for world in (1, 2, 4):
        loaders = [
            Loader(
                order, readers, layouts, global_batch=steps, micro_batch=2, rank=rank, world=world, prefetch=prefetch
            )
            for rank in range(world)
        ]
        streams = [list(loader.batches(2)) for loader in loaders]  # from the third step on
        for step in range(2, steps.total):
            first, count = steps.take(step)
            own = [batch for stream in streams for batch in stream if batch.step == step]
            assert np.array_equal(np.concatenate([b.streams for b in own]), whole.streams[first : first + count])
            tokens = np.concatenate([batch.tokens for batch in own])
            (ref,) = order.refs(order.window(first + count - 1, first + count))
            assert len(tokens) == count
            assert np.array_equal(tokens[-1], readers[ref.stream].read(ref.index * 8, 9))


def test_documents_of_growing_steps_and_the_way_back(ctx: Context, cut: dict[str, Manifest]) -> None:
    made, steps = mixed(ctx, cut, weights="natural"), schedule(SEQUENCES, 8, 8, GROWING)
    for step in (0, 3, 7, steps.total - 1):
        listed = documents_of_step(ctx, made, cut, step, steps)
        assert len(listed) == steps.batch(step)
        row = listed[-1]
        for piece in row.documents:
            bucket = bucket_of(row.sequence.stream)
            seen = steps_of_document(ctx, made, cut, bucket, piece.document.id, steps)
            assert (step, row.row) in {(sighting.step, sighting.row) for sighting in seen}
