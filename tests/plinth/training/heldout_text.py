"""Held-out text for tests, and what ranks do with it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import partly_scored

from plinth.compute.context import Context
from plinth.records import Manifest, Part
from plinth.tokens.tokenizer import tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.training.config import RunConfig
from tests.document_rows import document_part

HELD_OUT = {
    "code": ["def f(x): return x", "", "while True: pass  # größte\n" * 5, "x"],
    "web": [f"document {n} of the web tells a long story of a fox and {'a dog, ' * n}" for n in range(7)],
}


def curated(ctx: Context, bucket: str, train: Sequence[str], held_out: Sequence[str]) -> Manifest:
    """A bucket's `curated`; without held-out documents it has no such part."""
    parts = [_part(ctx, bucket, "part-00000.parquet", train)]
    parts += [_part(ctx, bucket, "heldout-00000.parquet", held_out)] if held_out else []
    return Manifest(asset=f"{bucket}/curated", step="curate", version="1", params={}, inputs={}, parts=tuple(parts))


def _part(ctx: Context, bucket: str, name: str, texts: Sequence[str]) -> Part:
    rows = (
        {"id": hashlib.sha256(f"{bucket}:{text}".encode()).digest()[:16], "text": text, "uri": f"file:///{bucket}/{n}"}
        for n, text in enumerate(texts)
    )
    return document_part(ctx, rows, name)


def corpus(ctx: Context, held_out: Mapping[str, Sequence[str]] = HELD_OUT) -> tuple[dict[str, Manifest], Manifest]:
    """`curated` by bucket, and a tokenizer."""
    made = {name: curated(ctx, name, [f"{name} " * 9, "a fox and a dog"], texts) for name, texts in held_out.items()}
    return made, tokenizer.run(ctx, TokenizerParameters(vocab_size=320), made)


def look_all(configs: Mapping[str, RunConfig]) -> dict[str, dict[str, Any]]:
    """Return on one rank, for each configuration, the slices before the first step, and the results of two steps with
    evaluations between them and without."""
    from plinth.training.checkpoint import snapshot
    from plinth.training.engine import engine as engines
    from plinth.training.engine.pipeline import open_engine
    from plinth.training.validation.validation import Validator

    rank, answers = engines.join(next(iter(configs.values()))), {}
    for name, config in configs.items():
        ends, validator = [], Validator(config)
        for looks in (True, False):
            engines.seed(config.seed + rank.index)
            engine = open_engine(config, rank)
            found = [validator.evaluate(engine, 0).slices] if looks else []
            losses = []
            for step in (1, 2):
                loss, norm = engine.train_step(partly_scored.batch_of(config, step, rank.index), partly_scored.LR)
                losses.append((float(loss), float(norm)))
                found += [validator.evaluate(engine, step).slices] if looks else []
            ends.append((losses, snapshot.digests(engine)))
            answers.setdefault(name, {"found": found})
            engine.deepspeed.destroy()
        answers[name] |= {"with": ends[0], "without": ends[1]}
    engines.leave()
    return answers


def train(*configs: RunConfig) -> None:
    """On one rank: whole runs, one after the other."""
    from plinth.training import loop
    from plinth.training.engine import engine

    rank = engine.join(configs[0])
    for config in configs:
        engine.seed(config.seed + rank.index)
        assert loop.train(config, rank, attempt=1)
    engine.leave()
