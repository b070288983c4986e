from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.records import Manifest
from plinth.tokens import packing as packing_index
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.order.batch import DocumentUse, documents_of_step, steps_of_document
from plinth.tokens.order.order import Order
from plinth.tokens.packing_layout import open_layouts
from plinth.tokens.reading.loader import Loader
from plinth.tokens.shards.reader import ShardReader

BATCH = 6


Line = tuple[Manifest, dict[str, Manifest]]


@pytest.fixture(params=["concatenate", "best-fit"])
def line(ctx: Context, made: SimpleNamespace, request: pytest.FixtureRequest) -> Line:
    """40 sequences of 48: web is seen in part, code about one and a half times."""
    _, _, shards = made.pipeline(
        ctx, {"web": [made.texts(1, 40), made.texts(2, 30)], "code": [made.texts(3, 12, words=30)]}
    )
    phases = (
        Phase(name="main", fraction=0.75, weights={"web": 2, "code": 1}),
        Phase(name="end", fraction=0.25, weights={"code": 1}),
    )
    params = Mixture(
        sequence_tokens=48, total_tokens=48 * 40, phases=phases, block_sequences=9, packing=request.param
    )
    packed = {b: packing_index.run(ctx, b, params.sequence_tokens, made) for b, made in shards.items()}
    for index in packed.values():
        ctx.refs.save(index)
    return mixture.run(ctx, params, shards, packed), shards


def test_documents_of_a_step_are_its_tokens(ctx: Context, line: Line) -> None:
    result, shards = line
    readers = {name: ShardReader(ctx.store, made) for name, made in shards.items()}
    layouts = open_layouts(ctx.store, ctx.refs.load, result, {name: r.tokens for name, r in readers.items()})
    order = Order(result)
    loader = Loader(order, readers, layouts, global_batch=BATCH, micro_batch=BATCH, prefetch=0)
    for step in (0, 3, 5):
        listed = documents_of_step(ctx, result, shards, step, BATCH)
        share = loader.batch(step)
        assert [row.sequence for row in listed] == order.refs(order.step_window(step, BATCH))
        for row in listed:
            held = np.zeros(49, bool)
            expanded = share.expanded()
            tokens, segments = expanded.tokens[row.row], expanded.segments[row.row]
            for piece in row.documents:
                own = slice(piece.first, piece.first + piece.tokens)
                assert not held[own].any()
                held[own] = True
                stream = readers[row.sequence.stream].read(piece.document.start, piece.document.tokens).astype(int)
                assert any(  # the document's own tokens, in one piece
                    np.array_equal(stream[at : at + piece.tokens], tokens[own]) for at in range(len(stream))
                )
                assert len({*segments[own]}) == 1
            scored = np.ones(48, bool) if expanded.scored is None else expanded.scored[row.row]
            assert held[1:][scored].all()  # whatever is learned belongs to a document that is listed
            assert (tokens[~held] == 0).all()  # only end-of-text is outside documents
            assert held.all() or result.params["packing"] == "best-fit"


def test_steps_of_a_document_are_the_listing_read_backwards(
    ctx: Context, made: SimpleNamespace, line: Line
) -> None:
    result, shards = line
    expected: dict[tuple[str, str], list[DocumentUse]] = {}
    for step in range(40 // BATCH):
        for row in documents_of_step(ctx, result, shards, step, BATCH):
            for piece in row.documents:
                use = DocumentUse(step, row.row, row.sequence.epoch, row.sequence.index, piece.tokens)
                expected.setdefault((row.sequence.stream, piece.document.id), []).append(use)
    seen = 0
    for bucket, manifest in shards.items():
        reader = ShardReader(ctx.store, manifest)
        for span in made.documents(reader):
            found = steps_of_document(ctx, result, shards, bucket, span.id, BATCH, part=span.part)
            assert found == expected.get((bucket, span.id), [])
            assert found == steps_of_document(ctx, result, shards, bucket, span.id, BATCH)
            seen += len(found)
    assert seen == sum(map(len, expected.values())) > 40
    assert {use.epoch for found in expected.values() for use in found} == {0, 1}


def test_what_is_not_there_was_not_seen(ctx: Context, line: Line) -> None:
    result, shards = line
    assert steps_of_document(ctx, result, shards, "web", "00" * 16, BATCH) == []
    assert steps_of_document(ctx, result, shards, "elsewhere", "00" * 16, BATCH) == []
    with pytest.raises(MissingError, match="no step 6"):  # 40 sequences fill six steps of six
        documents_of_step(ctx, result, shards, 6, BATCH)


def test_other_shards_are_refused(ctx: Context, line: Line) -> None:
    result, shards = line
    for wrong in ({}, {**shards, "web": shards["code"]}):
        with pytest.raises(MissingError, match="differ from the mixture"):
            documents_of_step(ctx, result, wrong, 0, BATCH)
