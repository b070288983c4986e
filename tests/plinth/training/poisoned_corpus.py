"""A corpus with a bucket that spoils a run: orderly text, and at known steps bytes that mean nothing.

`web` is text of a small grammar, which a tiny model learns to well below the entropy of its letters. `dump` is
random bytes written as letters, from a source of its own. Phases put `dump` into known steps and nowhere else.
"""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.launch.parameters import Launch, Supervision
from plinth.model.parameters import Model
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.shards import shards
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.tokenizer import tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.training import preparation
from plinth.training.config import RunConfig
from plinth.training.parameters.guard import GuardParameters
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints, Training
from tests.document_rows import document_part

#: Steps of the run, and those whose batches are all poison.
STEPS, POISON = 120, range(97, 103)

SEQUENCE, BATCH = 32, 8

SUBJECTS = ["the cat", "a ship", "my house", "the river", "an engine"]
VERBS = ["sees", "carries", "follows", "remembers"]
OBJECTS = ["the stone", "a letter", "the evening", "its shadow", "the road"]

GUARD = GuardParameters(min_steps=16, window_steps=48)


def sentences(chooser: random.Random, words: int) -> str:
    """Orderly text: every sentence has the same shape."""
    said = []
    for _ in range(words):
        said.append(f"{chooser.choice(SUBJECTS)} {chooser.choice(VERBS)} {chooser.choice(OBJECTS)}.")
    return " ".join(said)


def noise(chooser: random.Random, characters: int) -> str:
    """Letters without any order, often in long runs of one."""
    return "".join(chooser.choice("0123456789ABCDEF#") * chooser.choice([1, 1, 2, 9]) for _ in range(characters))


def curated(ctx: Context, bucket: str, texts: list[str], domain: str) -> Manifest:
    origin = json.dumps({"domain": domain})
    rows = (
        {"text": text, "uri": f"https://{domain}/{number}", "extra": origin,
         "id": hashlib.sha256(f"{bucket} {number} {text}".encode()).digest()[:16]}
        for number, text in enumerate(texts)
    )  # fmt: skip
    part = document_part(ctx, rows)
    made = Manifest(asset=f"{bucket}/curated", step="made", version="1", params={}, inputs={}, parts=(part,))
    ctx.refs.save(made)
    return made


def make(root: Path, ranks: int = 1, *, poison: bool = True, **changes: Any) -> RunConfig:
    """A prepared run in a workspace of its own; without `poison` the same steps hold `web` as well."""
    ctx = Context(Workspace(root).ensure())
    chooser = random.Random(7)
    texts = {
        "web": curated(ctx, "web", [sentences(chooser, 6) for _ in range(400)], "orderly.example"),
        "dump": curated(ctx, "dump", [noise(chooser, 60) for _ in range(60)], "scraped.example"),
    }
    trained = tokenizer.run(ctx, TokenizerParameters(vocab_size=300, sample_bytes=50_000), texts)
    sharded = {bucket: shards.run(ctx, bucket, Shards(), trained, texts[bucket]) for bucket in texts}
    mixed_in = {"dump": 3.0, "web": 1.0} if poison else {"web": 1.0}
    spans = [("before", POISON.start - 1, {"web": 1.0}), ("poison", len(POISON), mixed_in)]
    spans.append(("after", STEPS + 1 - POISON.stop, {"web": 1.0}))
    phases = tuple(Phase(name=name, fraction=steps / STEPS, weights=weights) for name, steps, weights in spans)
    params = Mixture(
        sequence_tokens=SEQUENCE,
        total_tokens=SEQUENCE * BATCH * STEPS,
        phases=phases,
        block_sequences=BATCH,
        max_epochs=1000,
    )
    mixed = mixture.run(ctx, params, sharded)
    fields: dict[str, Any] = {
        "model": Model(layers=2, dim=48, heads=4, kv_heads=2, ffn_dim=96),
        "optimizer": Optimizer(lr=1e-2, warmup_fraction=0.05, decay_fraction=0.5),
        "precision": "fp32",
        "micro_batch_sequences": BATCH // ranks,
        "global_batch_sequences": BATCH,
        "parallel": Parallel(zero_stage=1),
        "guard": GUARD,
        "checkpoints": Checkpoints(every_steps=16, keep_last=3, audit_steps=8, mode="sync"),
        "supervision": Supervision(backoff_s=0.1),
        "launch": Launch(ranks=ranks),
    }
    return preparation.prepare(ctx, "poisoned", Training(**{**fields, **changes}), mixed, sharded, trained)
