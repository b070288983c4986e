"""`plinth tokens packing` predicts the output of the stages; `plinth run batch` also lists packed sequences."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.fingerprint import digest
from plinth.model.parameters import Model
from plinth.records import Manifest
from plinth.storage.parts import DOCUMENT_SCHEMA, write_table
from plinth.storage.workspace import Workspace
from plinth.tokens import packing as packing_index
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.shards import shards
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.tokenizer import tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.training import preparation
from plinth.training.parameters.run import Training

Plinth = Callable[..., Any]
SEQUENCE = 16


def curated(ctx: Context, bucket: str) -> Manifest:
    """Documents from a few to some forty tokens."""
    rows = [
        {
            "id": bytes.fromhex(digest([bucket, row]))[:16],
            "text": " ".join(f"{bucket}{row}" for _ in range(1 + row % 9)),
            "uri": f"{bucket}://{row}",
            "snapshot": "s",
            "licence": "MIT",
            "mime": "text/plain",
            "source_bytes": 1,
            "extra": "{}",
        }
        for row in range(80)
    ]
    part = write_table(ctx.store, "part-00000.parquet", pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA))
    made = Manifest(asset=f"{bucket}/curated", step="made", version="1", params={}, inputs={}, parts=(part,))
    ctx.refs.save(made)
    return made


@pytest.fixture
def packed(tmp_path: Path) -> dict[str, Manifest]:
    """Published shards of two buckets, and a run that is packed best-fit; their packed indexes."""
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    texts = {bucket: curated(ctx, bucket) for bucket in ("code", "web")}
    trained = tokenizer.run(ctx, TokenizerParameters(vocab_size=320), texts)
    cut = {b: shards.run(ctx, b, Shards(tokens_per_shard=200), trained, each) for b, each in texts.items()}
    phases = (Phase(name="all", fraction=1, weights={"code": 1, "web": 1}),)
    params = Mixture(
        sequence_tokens=SEQUENCE, total_tokens=SEQUENCE * 64, phases=phases, packing="best-fit", block_sequences=16
    )
    indexes = {name: packing_index.run(ctx, name, params.sequence_tokens, made) for name, made in cut.items()}
    for manifest in (*cut.values(), *indexes.values()):
        ctx.refs.publish(manifest, "key")
    training = Training(model=Model(layers=1, dim=16, heads=2, kv_heads=1, ffn_dim=16), global_batch_sequences=16)
    preparation.prepare(ctx, "small", training, mixture.run(ctx, params, cut, indexes), cut, trained)
    return indexes


def test_what_is_said_is_what_is_made(plinth: Plinth, packed: dict[str, Manifest]) -> None:
    rows = json.loads(plinth("tokens", "packing", "-s", SEQUENCE, "-s", "64", "--json").out)
    assert [(row["stream"], row["sequence_tokens"], row["packing"]) for row in rows] == [
        (stream, width, name)
        for stream in ("code", "web")
        for width in (SEQUENCE, 64)
        for name in ("concatenate", "best-fit")
    ]
    for stream, index in packed.items():
        counts = index.stats["streams"][""]
        (row,) = [
            r for r in rows if (r["stream"], r["sequence_tokens"], r["packing"]) == (stream, SEQUENCE, "best-fit")
        ]
        assert row["sequences"] == counts["sequences"]
        assert row["padding"] == counts["padding"] / counts["targets"]
        assert (row["cut"], row["cut_needlessly"]) == (counts["split_documents"] / counts["documents"], 0)
    assert any(row["cut_needlessly"] > 0 for row in rows if row["packing"] == "concatenate")
    shown = plinth("tokens", "packing", "-s", SEQUENCE).out
    assert "best-fit" in shown
    assert "needlessly" in shown


def test_packed_sequences_are_listed_with_their_documents(plinth: Plinth, packed: dict[str, Manifest]) -> None:
    found = json.loads(plinth("run", "batch", "latest", "1", "--json").out)
    assert len(found["sequences"]) == 16
    for each in found["sequences"]:
        at = each["documents"][0]["first"]
        assert at in (0, 1)  # after an end-of-text, or a row of the middle of a document
        for piece in each["documents"]:
            assert piece["first"] == at
            assert piece["uri"].startswith(f"{each['bucket']}://")
            at += piece["tokens"]
        assert at <= SEQUENCE + 1
        cut = [piece for piece in each["documents"] if piece["tokens"] < piece["document_tokens"]]
        assert all(piece["document_tokens"] > SEQUENCE for piece in cut)


def test_nothing_is_there_yet(plinth: Plinth, tmp_path: Path) -> None:
    Workspace(tmp_path / "workspace").ensure()
    outcome = plinth("tokens", "packing")
    assert outcome.code == 3
    assert "no bucket has shards yet" in outcome.err
