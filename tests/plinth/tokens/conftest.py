"""Small curated buckets, and mixtures that exist on paper only."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.compute.engine import Engine, InlineEngine
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.shards import shards
from plinth.tokens.shards.index import DocumentSpan
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.shards.reader import ShardReader
from plinth.tokens.tokenizer import tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from tests.document_rows import document_part

TEXT = "the be to of and that have with house river 42 token shard été über 東京 -> () { } x = 1"
WORDS = [*TEXT.split(), "\n\n", "\n"]

MakeContext = Callable[..., Context]


@pytest.fixture
def make_ctx(tmp_path: Path) -> MakeContext:
    def make(name: str = "workspace", engine: Engine | None = None) -> Context:
        return Context(Workspace(tmp_path / name).ensure(), engine or InlineEngine())

    return make


@pytest.fixture
def ctx(make_ctx: MakeContext) -> Context:
    return make_ctx()


def _id(bucket: str, text: str, number: int) -> bytes:
    return hashlib.sha256(f"{bucket}\0{number}\0{text}".encode()).digest()[:16]


def _write_curated(ctx: Context, bucket: str, parts: Sequence[Sequence[str]], asset: str = "curated") -> Manifest:
    """A bucket's documents of these texts, in these parts."""
    written = []
    for i, texts in enumerate(parts):
        rows = (
            {"id": _id(bucket, text, 1000 * i + row), "text": text, "uri": f"{bucket}/{i}/{row}"}
            for row, text in enumerate(texts)
        )
        written.append(document_part(ctx, rows, f"part-{i:05d}.parquet"))
    return Manifest(asset=f"{bucket}/{asset}", step="made", version="1", params={}, inputs={}, parts=tuple(written))


def _make_texts(seed: int, documents: int, words: int = 60) -> list[str]:
    chooser = random.Random(seed)
    return [" ".join(chooser.choices(WORDS, k=chooser.randint(1, 2 * words))) for _ in range(documents)]


@pytest.fixture
def small() -> TokenizerParameters:
    return TokenizerParameters(vocab_size=320, sample_bytes=100_000)


def _make_pipeline(
    ctx: Context, parts: Mapping[str, Sequence[Sequence[str]]], tokens_per_shard: int = 500
) -> tuple[Manifest, dict[str, Manifest], dict[str, Manifest]]:
    """Tokenizer, curated and shards of buckets."""
    curated = {bucket: _write_curated(ctx, bucket, texts) for bucket, texts in parts.items()}
    trained = tokenizer.run(ctx, TokenizerParameters(vocab_size=320, sample_bytes=100_000), curated)
    params = Shards(tokens_per_shard=tokens_per_shard)
    return trained, curated, {b: shards.run(ctx, b, params, trained, curated[b]) for b in curated}


def _paper_mixture(
    available: Mapping[str, int],
    weights: Sequence[Mapping[str, float]],
    *,
    sequences: int,
    fractions: Sequence[float] | None = None,
    block: int = 16,
    seed: int = 1,
    sequence_tokens: int = 8,
    max_epochs: float = 1e9,
) -> Manifest:
    """A mixture manifest from sequence counts alone; no shards exist."""
    fractions = fractions or [1 / len(weights)] * len(weights)
    params = Mixture(
        sequence_tokens=sequence_tokens,
        total_tokens=sequences * sequence_tokens,
        phases=tuple(
            Phase(name=f"phase{i}", fraction=fraction, weights=dict(own))
            for i, (fraction, own) in enumerate(zip(fractions, weights, strict=True))
        ),
        block_sequences=block,
        max_epochs=max_epochs,
        seed=seed,
    )
    stats: dict[str, Any] = mixture.plan(params, available)
    return Manifest(asset="mixture", step="made", version="1", params={}, inputs={}, parts=(), stats=stats)


def _documents(reader: ShardReader) -> list[DocumentSpan]:
    """All documents of a stream, in order."""
    return [span for batch in reader.index.batches() for span in batch.records()]


@pytest.fixture(scope="session")
def made() -> SimpleNamespace:
    """The makers of test data: `curated`, `texts`, `pipeline`, `paper_mixture`; and `documents` of a stream."""
    return SimpleNamespace(
        curated=_write_curated,
        texts=_make_texts,
        pipeline=_make_pipeline,
        paper_mixture=_paper_mixture,
        document_id=_id,
        documents=_documents,
    )
