"""The stage: size, identity, and what growth and removal cost."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from plinth.compute.context import Context
from plinth.compute.engine import LocalEngine
from plinth.records import Manifest
from plinth.tokens.shards import shards
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.shards.reader import ShardReader
from plinth_audit.trace import trace_index
from plinth_audit.trace.matches import VerbatimIndex, spans
from plinth_audit.trace.trace_index import GRAM, STRIDE, open_anchors

MakeContext = Callable[..., Context]


def _run(ctx: Context, given: tuple[Manifest, dict[str, Manifest], dict[str, Manifest]]) -> Manifest:
    _, curated, cut = given
    return trace_index.run(ctx, "web", cut["web"], curated["web"], range_tokens=700)


def _done(ctx: Context) -> tuple[int, int]:
    """Ranges that were indexed, and that a record spared."""
    cost = ctx.costs["tokens.trace_index.anchors"]
    return cost.tasks, cost.spared


def test_anchors_are_every_17th_gram_of_whole_documents(ctx: Context, made: SimpleNamespace) -> None:
    given = made.pipeline(ctx, {"web": [made.texts(1, 30), made.texts(2, 20)]})
    index, reader = _run(ctx, given), ShardReader(ctx.store, given[2]["web"])
    assert index.stats["tokens"] == reader.tokens
    assert index.stats["ranges"] > 4
    whole = sum(part.rows * 8 for part in index.parts)
    assert whole <= reader.tokens * 8 / STRIDE + 8 * index.stats["ranges"]
    end = 0
    for part in index.parts:
        start, tokens = part.stats["start"], part.stats["tokens"]
        assert start == end
        end = start + tokens
        assert tokens <= 700
        held = reader.read(start, min(tokens + GRAM - 1, reader.tokens - start))
        expected = [
            at for at in range(0, min(tokens, len(held) - GRAM + 1), STRIDE) if not (held[at : at + GRAM] == 0).any()
        ]
        own = open_anchors(ctx.store, part)
        assert sorted(own.positions.tolist()) == expected
        assert (np.diff(own.hashes.astype(np.int64)) >= 0).all()
    assert end == reader.tokens


@pytest.mark.exhaustive
@pytest.mark.slow
def test_workers_do_not_show(make_ctx: MakeContext, made: SimpleNamespace) -> None:
    found = []
    for workers in (1, 2):
        with LocalEngine(workers) as engine:
            ctx = make_ctx(f"w{workers}", engine)
            found.append(_run(ctx, made.pipeline(ctx, {"web": [made.texts(1, 20), made.texts(2, 20)]})))
    assert found[0].digest == found[1].digest


def test_growth_indexes_only_what_is_new(ctx: Context, make_ctx: MakeContext, made: SimpleNamespace) -> None:
    """The shards are cut again when text is added; the ranges of older curated parts keep their anchors."""
    trained, curated, cut = made.pipeline(ctx, {"web": [made.texts(1, 40), made.texts(2, 30)]})
    first = trace_index.run(ctx, "web", cut["web"], curated["web"], range_tokens=700)
    before = _done(ctx)
    grown = made.curated(ctx, "web", [made.texts(1, 40), made.texts(2, 30), made.texts(3, 25)])
    again = shards.run(ctx, "web", Shards(tokens_per_shard=500), trained, grown)
    assert {part.blob for part in cut["web"].named("shard-")}.isdisjoint(p.blob for p in again.named("shard-")[:-1])
    second = trace_index.run(ctx, "web", again, grown, range_tokens=700)
    made_now = _done(ctx)[0] - before[0]
    assert made_now == second.stats["ranges"] - first.stats["ranges"] > 0
    assert [part.blob for part in second.parts[: len(first.parts)]] == [part.blob for part in first.parts]


def test_after_a_removal_the_index_is_the_one_made_from_nothing(
    ctx: Context, make_ctx: MakeContext, made: SimpleNamespace
) -> None:
    texts = [made.texts(1, 40), made.texts(2, 30)]
    secret = " ".join(f"river {n} token shard" for n in range(40))
    held = [texts[0], [*texts[1][:9], secret, *texts[1][9:]]]
    trained, curated, cut = made.pipeline(ctx, {"web": held})
    query = _tokens(ctx, trained, secret)
    assert _found(ctx, _run(ctx, (trained, curated, cut)), cut["web"], query) == [len(query)]

    def without(into: Context) -> tuple[Manifest, Manifest]:
        left = made.curated(into, "web", texts)
        after = shards.run(into, "web", Shards(tokens_per_shard=500), trained, left)
        return trace_index.run(into, "web", after, left, range_tokens=700), after

    done = _done(ctx)[0]
    updated, after = without(ctx)
    assert _done(ctx)[0] - done < updated.stats["ranges"]  # the part that lost nothing was not read again
    assert _found(ctx, updated, after, query) == []
    other = make_ctx("fresh")
    other.store.put_bytes(ctx.store.read_bytes(trained.parts[0].blob))
    rebuilt, _ = without(other)
    assert rebuilt.digest == updated.digest


def test_streams_by_axis_have_parts_of_their_own(ctx: Context, made: SimpleNamespace) -> None:
    texts = made.texts(1, 30)
    trained, curated, _ = made.pipeline(ctx, {"web": [texts]})
    cut = shards.run(
        ctx, "web", Shards(tokens_per_shard=500, axes=("length",), min_stream_tokens=1), trained, curated["web"],
        {"documents": curated["web"]},
    )  # fmt: skip
    index = VerbatimIndex(ctx.store, trace_index.run(ctx, "web", cut, curated["web"]), cut)
    assert len(index.readers) > 2
    longest = max(texts, key=len)
    found = index.find(_tokens(ctx, trained, longest))
    (name,) = (name for name, own in found.items() if len(own))
    assert "length=" in name


def _tokens(ctx: Context, trained: Manifest, text: str) -> np.ndarray:
    from plinth.tokens.tokenizer import encode

    (ids,) = encode.encode_texts(encode.load(ctx.store, trained.parts[0].blob), [text], "<u2")
    return ids.astype(np.int64)


def _found(ctx: Context, index: Manifest, cut: Manifest, query: np.ndarray) -> list[int]:
    return [span.tokens for span in spans(VerbatimIndex(ctx.store, index, cut).find(query), len(query))]
