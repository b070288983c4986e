from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from plinth.compute.context import Context
from plinth.compute.engine import LocalEngine
from plinth.errors import IntegrityError, MissingError
from plinth.records import Manifest
from plinth.storage import store
from plinth.tokens import packing as packing_index
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.packing import measure
from plinth.tokens.packing_layout import BestFit, Concatenated, SpanPlacement, open_layout
from plinth.tokens.shards import shards as cutting
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.shards.reader import ShardReader

WIDTH = 24
PARTS = 6


def _params(width: int = WIDTH, packing: str = "best-fit") -> Mixture:
    phases = (Phase(name="main", fraction=1.0, weights={"web": 1}),)
    return Mixture(sequence_tokens=width, total_tokens=width * 40, phases=phases, packing=packing)


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of a few sequences, so that the parts below make several."""
    monkeypatch.setattr(packing_index, "WINDOW_SEQUENCES", 30)
    monkeypatch.setattr(cutting, "INDEX_DOCUMENTS", 12)


@pytest.fixture
def blocks(windows: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks in each of them; in this process only."""
    monkeypatch.setattr(packing_index, "BLOCK_SEQUENCES", 8)
    monkeypatch.setattr(packing_index, "STRETCH_DOCUMENTS", 5)


@pytest.fixture
def shards(ctx: Context, made: SimpleNamespace) -> Manifest:
    parts = [made.texts(seed, 12, words=20) for seed in range(PARTS)]
    result: Manifest = made.pipeline(ctx, {"web": parts})[2]["web"]
    return result


@pytest.mark.usefixtures("blocks")
def test_every_sequence_by_index_and_back(ctx: Context, made: SimpleNamespace, shards: Manifest) -> None:
    packed = packing_index.run(ctx, "web", WIDTH, shards)
    reader, layout = ShardReader(ctx.store, shards), BestFit(ctx.store, packed, "web")
    assert 1 < len(packed.parts) < PARTS
    assert layout.sequences == packed.rows == packed.stats["streams"][""]["sequences"]
    scored = np.zeros(reader.tokens, int)
    every = layout.pieces(np.arange(layout.sequences))
    expected: dict[str, list[SpanPlacement]] = {}
    for sequence in range(layout.sequences):
        own = slice(every.offsets[sequence], every.offsets[sequence + 1])
        alone = layout.pieces(np.array([sequence]))
        assert alone.starts.tolist() == every.starts[own].tolist()
        place = int(alone.tokens[0] <= WIDTH)
        for start, tokens, context in zip(alone.starts, alone.tokens, alone.context, strict=True):
            scored[start + context : start + tokens] += 1
            (span,) = reader.index.within(np.array([start]), np.array([start + tokens]))[1].records()  # of one document
            expected.setdefault(span.id, []).append(SpanPlacement(sequence, place, int(tokens)))
            place += int(tokens)
    assert (scored == 1).all()
    for span in made.documents(reader):
        found = layout.placements(span.start, span.tokens)
        assert found == sorted(expected[span.id], key=lambda placement: placement.sequence)


@pytest.mark.usefixtures("blocks")
def test_counts_are_those_of_the_sequences(ctx: Context, made: SimpleNamespace, shards: Manifest) -> None:
    packed = packing_index.run(ctx, "web", WIDTH, shards)
    reader, layout = ShardReader(ctx.store, shards), BestFit(ctx.store, packed, "web")
    counts = packing_index.counts_of(WIDTH, shards, reader.stream, packed)
    lengths = np.array([span.tokens for span in made.documents(reader)])
    scored = int(layout.pieces(np.arange(layout.sequences)).scored.sum())
    assert (counts.tokens, scored) == (reader.tokens, reader.tokens)
    assert counts.targets == layout.sequences * WIDTH == counts.tokens + counts.padding + counts.masked
    assert counts.masked == int(((lengths > WIDTH) & (lengths % WIDTH > 0)).sum()) > 0
    assert counts.split_documents == int((lengths > WIDTH).sum()) > 0
    assert counts.starts == counts.documents == len(lengths) == PARTS * 12
    assert (counts.dropped, counts.split_fitting) == (0, 0)
    assert measure(reader, WIDTH).split_fitting > 0  # which is what best-fit is for


@pytest.mark.usefixtures("windows")
def test_the_same_bytes_on_any_number_of_workers_and_only_new_windows_are_packed(
    ctx: Context, made: SimpleNamespace, make_ctx, shards: Manifest
) -> None:
    packed = packing_index.run(ctx, "web", WIDTH, shards)
    with LocalEngine(workers=2) as engine:
        other = make_ctx("other", engine)
        parts = [made.texts(seed, 12, words=20) for seed in range(PARTS)]
        again = packing_index.run(other, "web", WIDTH, made.pipeline(other, {"web": parts})[2]["web"])
    assert again == packed
    trained, _, _ = made.pipeline(ctx, {"web": parts})
    more = made.curated(ctx, "web", [*parts, made.texts(99, 40, words=20)])
    grown = packing_index.run(ctx, "web", WIDTH, cutting.run(ctx, "web", Shards(), trained, more))
    assert [part.blob for part in grown.parts[: len(packed.parts) - 1]] == [part.blob for part in packed.parts[:-1]]


def test_what_is_not_there_or_not_it_is_refused(ctx: Context, shards: Manifest) -> None:
    packed = packing_index.run(ctx, "web", WIDTH, shards)
    for params, given in (
        (_params(), None),
        (_params(48), packed),
        (_params(), packed.model_copy(update={"inputs": {}})),
    ):
        with pytest.raises(MissingError, match="no packed index of web/shards"):
            mixture.run(ctx, params, {"web": shards}, {"web": given} if given else None)
    path = ctx.store.path(packed.parts[0].blob)
    data = bytearray(path.read_bytes())
    path.chmod(0o644)
    path.write_bytes(bytes(len(data)))
    store.remember(path, packed.parts[0].blob)  # as a disk does that changes bytes and no time
    with pytest.raises(IntegrityError, match="not an index of sequences"):
        BestFit(ctx.store, packed, "web").pieces(np.array([0]))
    data[-200] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="has changed"):
        BestFit(ctx.store, packed, "web").pieces(np.array([0]))
    path.write_bytes(data[:-1])
    with pytest.raises(IntegrityError, match="is truncated"):
        BestFit(ctx.store, packed, "web").pieces(np.array([0]))


@pytest.mark.usefixtures("blocks")
def test_a_sequence_takes_its_documents_from_one_block(ctx: Context, made: SimpleNamespace, shards: Manifest) -> None:
    """The documents of a sequence are close together in the order of the shards."""
    lengths = np.array([100, 50, 60, 30, 200, 10, 10, 10, 10, 10, 90, 99, 5])
    assert packing_index._blocks(lengths, [5, 10, 13], 8 * 24) == [0, 5, 13]
    assert packing_index._blocks(lengths, [5, 10, 13], 10**6) == [0, 13]
    assert packing_index._blocks(lengths[:10], [5, 10], 8 * 24) == [0, 10]  # too little for a block of its own
    assert packing_index._blocks(lengths[:0], [], 8 * 24) == [0]
    packed = packing_index.run(ctx, "web", WIDTH, shards)
    pieces = BestFit(ctx.store, packed, "web").pieces(np.arange(packed.rows))
    order = np.concatenate([[0], np.cumsum([s.tokens for s in made.documents(ShardReader(ctx.store, shards))])])
    apart = [
        np.ptp(np.searchsorted(order, pieces.starts[a:b], side="right"))
        for a, b in zip(pieces.offsets, pieces.offsets[1:], strict=False)
    ]
    assert 0 < max(apart) < 25  # documents, of 72


@pytest.mark.usefixtures("blocks")
def test_a_span_maps_the_windows_that_it_lies_in(ctx: Context, shards: Manifest) -> None:
    packed = packing_index.run(ctx, "web", WIDTH, shards)
    edge = int(packed.parts[0].stats["tokens"])  # where the first window ends and the second begins
    for start, tokens, windows in ((edge - 1, 1, {0}), (edge, 1, {1}), (edge - 1, 2, {0, 1})):
        layout = BestFit(ctx.store, packed, "web")
        assert sum(placement.tokens for placement in layout.placements(start, tokens)) == tokens
        assert set(layout._windows) == windows


def test_the_packing_of_a_mixture_is_the_layout_of_its_streams(ctx: Context) -> None:
    def opened(**params: str) -> object:
        stats = {"sequence_tokens": 24}
        manifest = Manifest(asset="mixture", step="t", version="1", params=params, inputs={}, parts=(), stats=stats)
        return open_layout(ctx.store, ctx.refs.load, manifest, "web", 100)

    assert isinstance(opened(), Concatenated)
    assert isinstance(opened(packing="concatenate"), Concatenated)
    with pytest.raises(MissingError, match="does not name web/packed"):
        opened(packing="best-fit")


def test_concatenated_sequences_share_a_token(ctx: Context) -> None:
    layout = Concatenated(50, 16)
    pieces = layout.pieces(np.array([2, 0]))
    assert (layout.sequences, pieces.starts.tolist(), pieces.tokens.tolist()) == (3, [32, 0], [17, 17])
    assert pieces.scored.tolist() == [16, 16]
    assert layout.placements(15, 2) == [SpanPlacement(0, 15, 2), SpanPlacement(1, 0, 1)]
    assert layout.placements(49, 1) == []  # the tail
