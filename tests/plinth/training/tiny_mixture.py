"""Two buckets of generated text, tokenized, sharded and mixed: what a run reads."""

from __future__ import annotations

import random

from plinth.compute.context import Context
from plinth.records import Manifest
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.shards import shards
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.tokenizer import tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from tests.document_rows import document_part


def curated(ctx: Context, bucket: str) -> Manifest:
    chooser = random.Random(bucket)
    texts = [" ".join(chooser.choices(["the", "house", "of", "tokens", "42"], k=80)) for _ in range(60)]
    part = document_part(ctx, ({"text": text} for text in texts))
    return Manifest(asset=f"{bucket}/curated", step="made", version="1", params={}, inputs={}, parts=(part,))


def made_mixture(ctx: Context, steps: int = 12) -> tuple[Manifest, dict[str, Manifest], Manifest]:
    """Publish a mixture of `steps` steps, its shards and its tokenizer."""
    texts = {bucket: curated(ctx, bucket) for bucket in ("code", "web")}
    trained = tokenizer.run(ctx, TokenizerParameters(vocab_size=300), texts)
    sharded = {bucket: shards.run(ctx, bucket, Shards(), trained, texts[bucket]) for bucket in texts}
    phase = Phase(name="all", fraction=1.0, weights={"code": 1.0, "web": 3.0})
    wanted = Mixture(sequence_tokens=32, total_tokens=32 * 4 * steps, phases=(phase,), max_epochs=1000.0)
    mixed = mixture.run(ctx, wanted, sharded)
    return mixed, sharded, trained
