from __future__ import annotations

from types import SimpleNamespace

import pytest

from plinth.context import Context
from plinth.errors import MissingError
from plinth.recipe import tokens as recipe
from plinth.records import Manifest
from plinth.tokens import mixture
from plinth.tokens.batch import Sighting, documents_of_step, steps_of_document
from plinth.tokens.order import Order
from plinth.tokens.reader import ShardReader

BATCH = 6


@pytest.fixture
def line(ctx: Context, made: SimpleNamespace) -> tuple[Manifest, dict[str, Manifest]]:
    """40 sequences of 48: web is seen in part, code about one and a half times."""
    _, _, shards = made.line(
        ctx, {"web": [made.texts(1, 40), made.texts(2, 30)], "code": [made.texts(3, 12, words=30)]}
    )
    phases = (
        recipe.Phase(name="main", fraction=0.75, weights={"web": 2, "code": 1}),
        recipe.Phase(name="end", fraction=0.25, weights={"code": 1}),
    )
    params = recipe.Mixture(sequence_tokens=48, total_tokens=48 * 40, phases=phases, block_sequences=9)
    return mixture.run(ctx, params, shards), shards


def test_documents_of_a_step_are_its_tokens(ctx: Context, line: tuple[Manifest, dict[str, Manifest]]) -> None:
    result, shards = line
    for step in (0, 3, 5):
        listed = documents_of_step(ctx, result, shards, step, BATCH)
        assert [row.sequence for row in listed] == Order(result).step(step, BATCH)
        for row in listed:
            reader = ShardReader(ctx.store, shards[row.sequence.bucket])
            tokens = reader.read(row.sequence.start, row.sequence.tokens)
            assert sum(piece.tokens for piece in row.documents) == len(tokens) == 49
            at = 0
            for piece in row.documents:
                assert piece.first == at
                at += piece.tokens
                ends_here = piece.document.start + piece.document.tokens == row.sequence.start + at
                assert ends_here == (tokens[at - 1] == 0)  # an end-of-text is where a document ends


def test_steps_of_a_document_are_the_listing_read_backwards(
    ctx: Context, line: tuple[Manifest, dict[str, Manifest]]
) -> None:
    result, shards = line
    expected: dict[tuple[str, str], list[Sighting]] = {}
    for step in range(40 // BATCH):
        for row in documents_of_step(ctx, result, shards, step, BATCH):
            for piece in row.documents:
                sighting = Sighting(step, row.row, row.sequence.epoch, row.sequence.index, piece.tokens)
                expected.setdefault((row.sequence.bucket, piece.document.id), []).append(sighting)
    seen = 0
    for bucket, manifest in shards.items():
        reader = ShardReader(ctx.store, manifest)
        for span in reader.documents(0, reader.tokens):
            found = steps_of_document(ctx, result, shards, bucket, span.id, BATCH, part=span.part)
            assert found == expected.get((bucket, span.id), [])
            assert found == steps_of_document(ctx, result, shards, bucket, span.id, BATCH)
            seen += len(found)
    assert seen == sum(map(len, expected.values())) > 60
    assert {sighting.epoch for found in expected.values() for sighting in found} == {0, 1}


def test_what_is_not_there_was_not_seen(ctx: Context, line: tuple[Manifest, dict[str, Manifest]]) -> None:
    result, shards = line
    assert steps_of_document(ctx, result, shards, "web", "00" * 16, BATCH) == []
    assert steps_of_document(ctx, result, shards, "elsewhere", "00" * 16, BATCH) == []
    with pytest.raises(MissingError, match="no step 6"):  # 40 sequences fill six steps of six
        documents_of_step(ctx, result, shards, 6, BATCH)


def test_other_shards_are_refused(ctx: Context, line: tuple[Manifest, dict[str, Manifest]]) -> None:
    result, shards = line
    for wrong in ({}, {**shards, "web": shards["code"]}):
        with pytest.raises(MissingError, match="not those of the mixture"):
            documents_of_step(ctx, result, wrong, 0, BATCH)
