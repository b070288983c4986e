"""Cases that other projects' loaders are tested for, or have had to fix; their ideas, our code, both packings.

MosaicML streaming   elastic determinism: the same global batches on another number of ranks and workers
                     mid-epoch resumption from a sample count; nothing dropped or repeated in an epoch
LitData              resume with workers, and past one epoch; iterating draws nothing from the global generator
torchtitan           a restored loader yields what the interrupted one would have; packing buffers restored
OLMo-core            data order is fixed by a fingerprint of the data; work is divided over ranks, not copied
nanotron             consumed samples across stages of training: a new phase begins where the last one ended
Megatron             blended data sets give each source its share; sample index built once, read at any position
"""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth.tokens import packing as packing_index
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.order.order import Order
from plinth.tokens.packing_layout import PackingLayout, open_layouts
from plinth.tokens.reading.compact_batch import CompactBatch
from plinth.tokens.reading.loader import Loader, RankBatch
from plinth.tokens.shards.reader import ShardReader, open_streams

S, GLOBAL = 32, 8


class Line:
    """Two buckets, two phases, some epochs of each; opened again as often as asked, as a new process would."""

    def __init__(self, ctx: Context, shards: dict[str, Manifest], packing: str) -> None:
        self.ctx, self.shards = ctx, shards
        phases = (
            Phase(name="stable", fraction=0.7, weights={"web": 2, "code": 1}),
            Phase(name="annealing", fraction=0.3, weights={"web": 1, "code": 1}),
        )
        params = Mixture(
            sequence_tokens=S, total_tokens=S * 320, phases=phases, block_sequences=20, packing=packing, max_epochs=8
        )
        packed = {name: packing_index.run(ctx, name, params.sequence_tokens, made) for name, made in shards.items()}
        for index in packed.values():
            ctx.refs.save(index)
        self.mixture = mixture.run(ctx, params, shards, packed)

    def opened(self) -> tuple[Order, dict[str, ShardReader], dict[str, PackingLayout]]:
        order, readers = Order(self.mixture), open_streams(self.ctx.store, self.shards)
        tokens = {name: reader.tokens for name, reader in readers.items()}
        return order, readers, open_layouts(self.ctx.store, self.ctx.refs.load, self.mixture, tokens)

    def loader(
        self, *, rank: int = 0, world: int = 1, micro: int = 1, batch: int = GLOBAL, prefetch: int = 0
    ) -> Loader:
        return Loader(*self.opened(), global_batch=batch, micro_batch=micro, rank=rank, world=world, prefetch=prefetch)


@pytest.fixture(scope="module", params=["concatenate", "best-fit"])
def line(tmp_path_factory: pytest.TempPathFactory, made: SimpleNamespace, request: pytest.FixtureRequest) -> Line:
    ctx = Context(Workspace(tmp_path_factory.mktemp("peers")).ensure())
    _, _, shards = made.pipeline(
        ctx, {"web": [made.texts(1, 40, 40), made.texts(2, 40, 40)], "code": [made.texts(3, 24, 40)]}
    )
    return Line(ctx, shards, request.param)


@pytest.fixture(scope="module")
def whole(line: Line) -> list[RankBatch]:
    """The run without any interruption."""
    steps = list(line.loader(prefetch=2).batches())
    assert len(steps) == 40
    return steps


def _same(one: RankBatch, other: RankBatch) -> bool:
    names = ("tokens", "starts", "unscored", "streams", "scored_tokens")
    return one.step == other.step and all(np.array_equal(getattr(one, n), getattr(other, n)) for n in names)


def _joined(parts: list[RankBatch]) -> RankBatch:
    """The global batch that ranks loaded in parts."""
    tokens, segments, scored = zip(*(part.expanded() for part in parts), strict=True)
    joined = CompactBatch.of(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate(segments),
        None if scored[0] is None else np.concatenate(scored),
    )
    assert np.array_equal(joined.tokens, np.concatenate(tokens))
    streams = np.concatenate([part.streams for part in parts])
    return RankBatch(joined.tokens, joined.starts, joined.unscored, parts[0].step, streams, parts[0].scored_tokens)


@given(stop=st.integers(0, 40), prefetch=st.sampled_from([0, 3]))
@settings(max_examples=12, deadline=None)
def test_mid_epoch_resumption(line: Line, whole: list[RankBatch], stop: int, prefetch: int) -> None:
    """MosaicML streaming `test_streamingdataloader_mid_epoch_resumption`, LitData's resume: interrupted anywhere, with
    unread prefetched batches, a new process yields the remaining batches and nothing else."""
    running = line.loader(prefetch=prefetch).batches()
    taken = [next(running) for _ in range(stop)]
    running.close()  # type: ignore[attr-defined]
    rest = list(line.loader(prefetch=prefetch).batches(stop))
    assert all(map(_same, taken + rest, whole))
    assert len(taken) + len(rest) == len(whole)


@given(
    worlds=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=3, max_size=3),
    cuts=st.tuples(st.integers(0, 20), st.integers(20, 40)),
)
@settings(max_examples=10, deadline=None)
def test_elastic_resumption(line: Line, whole: list[RankBatch], worlds: list[int], cuts: tuple[int, int]) -> None:
    """MosaicML streaming's elastic determinism: a run that goes on with other numbers of ranks, twice, sees the same
    global batches; here in the same rows as well."""
    edges = [0, *cuts, 40]
    for world, first, stop in zip(worlds, edges, edges[1:], strict=False):
        ranks = [line.loader(rank=rank, world=world).batches(first, stop) for rank in range(world)]
        assert all(_same(_joined(list(parts)), whole[parts[0].step]) for parts in zip(*ranks, strict=True))


@pytest.mark.parametrize("micro", [1, 2, 4, 8])
def test_micro_batches_only_cut(line: Line, whole: list[RankBatch], micro: int) -> None:
    """Their `num_workers` and `batch_size` matter to what is seen; a micro-batch must not."""
    for step in (0, 17, 39):
        batch = line.loader(micro=micro).batch(step)
        assert _same(_joined([batch.micro_batch(number, micro) for number in range(GLOBAL // micro)]), whole[step])


def test_nothing_is_dropped_or_repeated_in_any_epoch(line: Line, whole: list[RankBatch]) -> None:
    """MosaicML streaming's sample order, LitData past one epoch, Megatron's sample index: every sequence
    once an epoch, for as many epochs as the run has, across phases (nanotron's stages)."""
    order = Order(line.mixture)
    refs = [ref for step in range(len(whole)) for ref in order.refs(order.step_window(step, GLOBAL))]
    for name, available in zip(order.streams, order.available, strict=True):
        seen = [(ref.epoch, ref.index) for ref in refs if ref.stream == name]
        counts = Counter(epoch for epoch, _ in seen)
        assert len(set(seen)) == len(seen)
        assert [counts[epoch] for epoch in range(max(counts))] == [available] * max(counts)  # whole epochs but the last
        assert max(counts) >= 1


def test_every_token_of_a_document_is_learnt_once_an_epoch(line: Line) -> None:
    """Effect of dropping and repeating, by target: with best-fit every token of every document; concatenated every
    token but the stream's first and its tail."""
    order, readers, layouts = line.opened()
    loader = line.loader(batch=1)
    rows: dict[str, dict[int, int]] = {name: {} for name in order.streams}  # sequence -> a step of epoch 0 with it
    for ref in order.refs(order.window(0, order.sequences)):
        if ref.epoch == 0:
            rows[ref.stream][ref.index] = ref.position
    for name, reader in readers.items():
        stream, learnt = reader.read(0, reader.tokens), np.zeros(reader.tokens, int)
        assert sorted(rows[name]) == list(range(layouts[name].sequences))
        for index, position in rows[name].items():
            share = loader.batch(position)
            mask = share.expanded().scored
            scored = np.ones(S, bool) if mask is None else mask[0]
            pieces, place = layouts[name].pieces(np.array([index])), 0
            place = int(pieces.tokens[0] <= S)
            for start, count, context in zip(pieces.starts, pieces.tokens, pieces.context, strict=True):
                own = np.arange(start + context, start + count)
                targets = np.arange(place + context, place + count) - 1
                assert scored[targets].all()
                assert share.tokens[0, 1:][targets].tolist() == stream[own].tolist()
                learnt[own] += 1
                place += int(count)
            assert scored.sum() == int((pieces.tokens - pieces.context).sum())  # and nothing else
        tail = 0 if layouts[name].padded else reader.tokens - 1 - layouts[name].sequences * S
        skipped = [] if layouts[name].padded else [0, *range(reader.tokens - tail, reader.tokens)]
        assert np.flatnonzero(learnt != 1).tolist() == skipped


def test_no_buffer_has_to_be_restored(line: Line, whole: list[RankBatch]) -> None:
    """torchtitan, NeMo: a packer that fills a buffer as it goes must save what waits in it. Here a loader's attributes
    are the same before and after it ran, and a fresh one makes any step without the ones before."""
    loader = line.loader()
    before = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    for step in (39, 3, 21, 3):
        assert _same(loader.batch(step), whole[step])
    assert {name: value for name, value in vars(loader).items() if not name.startswith("_")} == before


def test_nothing_is_drawn_from_global_generators(line: Line, whole: list[RankBatch]) -> None:
    """LitData, torchtitan: a loader that draws its shuffle from the global generator changes dropout after a resume,
    and is affected by any code that seeds it."""
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        states = random.getstate(), np.random.get_state()[1].tolist()
        assert _same(next(iter(line.loader(prefetch=2).batches(5))), whole[5])
        assert (random.getstate(), np.random.get_state()[1].tolist()) == states


def test_the_mixture_is_given_in_every_stretch(line: Line, whole: list[RankBatch]) -> None:
    """Megatron's blended data set, MosaicML's stream proportions: each block of 20 has its share, not only the run."""
    buckets = np.concatenate([batch.streams for batch in whole])
    code = Order(line.mixture).streams.index("code")
    assert all(6 <= (buckets[at : at + 20] == code).sum() <= 7 for at in range(0, 220, 20))
    assert all((buckets[at : at + 20] == code).sum() == 10 for at in range(224, 304, 20))


def test_other_data_is_another_order(line: Line, made: SimpleNamespace, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """OLMo-core's data fingerprint: a run does not resume on data that changed; here the mixture names its inputs."""
    ctx = Context(Workspace(tmp_path).ensure())
    _, _, shards = made.pipeline(
        ctx, {"web": [made.texts(1, 40, 40), made.texts(9, 40, 40)], "code": [made.texts(3, 24, 40)]}
    )
    other = Line(ctx, shards, line.mixture.params["packing"])
    assert other.mixture.digest != line.mixture.digest
    assert other.mixture.inputs["web/shards"] != line.mixture.inputs["web/shards"]
