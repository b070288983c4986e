"""Two buckets of generated text, tokenised, sharded and mixed: what a run reads."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pyarrow as pa

from plinth.compute.context import Context
from plinth.records import Manifest
from plinth.schemas import DOCUMENT_SCHEMA
from plinth.storage.parts import write_table
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.shards import shards
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.tokenizer import tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters


def curated(ctx: Context, bucket: str) -> Manifest:
    chooser = random.Random(bucket)
    texts = [" ".join(chooser.choices(["the", "house", "of", "tokens", "42"], k=80)) for _ in range(60)]
    empty: dict[str, Any] = {
        "captured_at": None,
        "snapshot": "s",
        "licence": "MIT",
        "mime": "text/plain",
        "extra": "{}",
    }
    rows = [
        {"id": hashlib.sha256(text.encode()).digest()[:16], "text": text, "uri": "u", "source_bytes": 1, **empty}
        for text in texts
    ]
    part = write_table(ctx.store, "part-00000.parquet", pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA))
    return Manifest(asset=f"{bucket}/curated", step="made", version="1", params={}, inputs={}, parts=(part,))


def made_mixture(ctx: Context, steps: int = 12) -> tuple[Manifest, dict[str, Manifest], Manifest]:
    """Mixture of so many steps, shards and tokenizer."""
    texts = {bucket: curated(ctx, bucket) for bucket in ("code", "web")}
    trained = tokenizer.run(ctx, TokenizerParameters(vocab_size=300), texts)
    sharded = {bucket: shards.run(ctx, bucket, Shards(), trained, texts[bucket]) for bucket in texts}
    phase = Phase(name="all", fraction=1.0, weights={"code": 1.0, "web": 3.0})
    wanted = Mixture(sequence_tokens=32, total_tokens=32 * 4 * steps, phases=(phase,), max_epochs=1000.0)
    mixed = mixture.run(ctx, wanted, sharded)
    return mixed, sharded, trained
