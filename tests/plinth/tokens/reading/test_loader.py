from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError, MissingError, RecipeError
from plinth.storage.workspace import Workspace
from plinth.tokens import packing as packing_index
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.order.order import Order, PoissonSteps
from plinth.tokens.order.steps import StepRange
from plinth.tokens.packing_layout import PackingLayout, open_layouts
from plinth.tokens.reading.loader import Loader, SequenceGather
from plinth.tokens.shards.reader import ShardReader, open_streams

Line = tuple[Order, dict[str, ShardReader], dict[str, PackingLayout]]


@pytest.fixture(scope="module", params=["concatenate", "best-fit"])
def line(tmp_path_factory: pytest.TempPathFactory, made: SimpleNamespace, request: pytest.FixtureRequest) -> Line:
    ctx = Context(Workspace(tmp_path_factory.mktemp("loader")).ensure())
    _, _, shards = made.pipeline(ctx, {"web": [made.texts(1, 50)], "code": [made.texts(2, 20)]}, tokens_per_shard=400)
    phases = (Phase(name="main", fraction=1.0, weights={"web": 2, "code": 1}),)
    params = Mixture(
        sequence_tokens=24, total_tokens=24 * 130, phases=phases, block_sequences=10, packing=request.param
    )
    packed = {name: packing_index.run(ctx, name, params.sequence_tokens, cut) for name, cut in shards.items()}
    for index in packed.values():
        ctx.refs.save(index)
    result = mixture.run(ctx, params, shards, packed)
    readers = open_streams(ctx.store, shards)
    tokens = {name: reader.tokens for name, reader in readers.items()}
    return Order(result), readers, open_layouts(ctx.store, ctx.refs.load, result, tokens)


def _slowly(line: Line, bucket: str, index: int) -> tuple[list[int], list[int], list[bool]]:
    """Return tokens, segments and scored positions of one sequence, piece by piece, from `packing`."""
    _, readers, layouts = line
    pieces = layouts[bucket].pieces(np.array([index]))
    tokens: list[int] = [] if pieces.tokens[0] == 25 else [0]
    scored = [False] * len(tokens)
    for start, count, context in zip(pieces.starts, pieces.tokens, pieces.context, strict=True):
        tokens += readers[bucket].read(int(start), int(count)).tolist()
        scored += [not context, *[True] * (int(count) - 1)]
    numbers = np.cumsum([0, *(token == 0 for token in tokens[:-1])]).tolist()  # end-of-text is of what it ends
    padding = 25 - len(tokens)
    return tokens + [0] * padding, numbers + [numbers[-1] + 1] * padding, (scored + [False] * padding)[1:]


def test_arrays_are_the_sequences_of_the_order(line: Line) -> None:
    order = line[0]
    for batch in Loader(*line, global_batch=8, micro_batch=4).batches(3, 7):
        for number in range(2):
            refs = order.refs(order.step_window(batch.step, 8))[4 * number :][:4]
            tokens, numbers, scored = zip(*(_slowly(line, ref.stream, ref.index) for ref in refs), strict=True)
            micro = batch.micro_batch(number, 4)
            expanded = micro.expanded()
            assert (micro.tokens.dtype, micro.tokens.shape) == (line[1]["web"].dtype, (4, 25))
            assert micro.tokens.tolist() == expanded.tokens.tolist() == list(tokens)
            assert expanded.segments.tolist() == list(numbers)
            assert (np.ones((4, 24)) if expanded.scored is None else expanded.scored).tolist() == list(scored)
            assert [order.streams[stream] for stream in micro.streams] == [ref.stream for ref in refs]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_every_rank_knows_how_many_targets_the_step_scores(line: Line, world: int) -> None:
    for step in (0, 9):
        ranks = [Loader(*line, global_batch=8, micro_batch=2, rank=r, world=world, prefetch=0) for r in range(world)]
        shares = [loader.batch(step) for loader in ranks]
        masks = [share.expanded().scored for share in shares]
        counted = sum(s.tokens[:, 1:].size if m is None else int(m.sum()) for s, m in zip(shares, masks, strict=True))
        assert counted == sum(int(share.scored_counts.sum()) for share in shares)
        assert {share.scored_tokens for share in shares} == {counted}
        assert all(mask is None or mask.any(axis=1).all() for mask in masks)


def test_tokens_far_apart_in_the_shards_are_found(line: Line) -> None:
    """Shards of 400 tokens, sequences of 24: pieces lie across the boundary of two."""
    order, readers, layouts = line
    crossing = 0
    for name in order.streams:
        pieces = layouts[name].pieces(np.arange(layouts[name].sequences))
        bounds = np.array(readers[name].shard_starts)
        ends = pieces.starts + pieces.tokens - 1
        crossing += int(
            (np.searchsorted(bounds, pieces.starts, "right") != np.searchsorted(bounds, ends, "right")).sum()
        )
        gather = SequenceGather([readers[name]], contiguous=layouts[name].contiguous)
        tokens = np.empty((len(pieces), 25), gather.dtype)
        gather.fill(np.zeros(len(pieces), np.int16), pieces, tokens)
        assert tokens.tolist() == [_slowly(line, name, row)[0] for row in range(len(pieces))]
    assert crossing > 3


@pytest.mark.parametrize("world", [1, 4, 8])
def test_steps_that_are_drawn_are_divided_over_ranks_whatever_their_size(line: Line, world: int) -> None:
    """Also a rank without any sequence; every sequence is the one that the order has at the drawn position."""
    order, sizes = line[0], set()
    drawn = PoissonSteps(order.sequences, order.sequence_tokens, (StepRange(0, 0, 8, 24),), b"key")
    for step in range(8):
        loaders = [Loader(*line, global_batch=drawn, micro_batch=1, rank=r, world=world) for r in range(world)]
        batches = [loader.batch(step) for loader in loaders]
        found = np.concatenate([batch.tokens for batch in batches])
        rows = [order.refs(order.window(at, at + 1))[0] for at in drawn.positions(step).tolist()]
        assert len(found) == len(rows) == sum(map(len, batches))
        for tokens, ref in zip(found, rows, strict=True):
            assert tokens.tolist() == _slowly(line, ref.stream, ref.index)[0]
        assert [ref.position for ref in order.refs(order.step_window(step, drawn))] == drawn.positions(step).tolist()
        sizes |= set(map(len, batches))
    assert world < 8 or 0 in sizes
    assert len(sizes) > 1


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
    order, readers, layouts = line
    for wrong in ({"code": readers["code"]}, {"web": readers["code"], "code": readers["web"]}):
        with pytest.raises(IntegrityError, match="differ from the mixture"):
            Loader(order, wrong, layouts, global_batch=8, micro_batch=2)
    swapped = {"web": layouts["code"], "code": layouts["web"]}
    with pytest.raises(IntegrityError, match="differ from the mixture"):
        Loader(order, readers, swapped, global_batch=8, micro_batch=2)
