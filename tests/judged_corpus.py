"""A corpus of two buckets, judged by the real stages on real annotators, published in a workspace.

`build(folder)` takes about a second, `copy(…)` copies what one test process built. `PLANTED` lists what is in it; ids
follow from bucket, uri and text.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from plinth.compute.context import Context, manifest
from plinth.corpus import annotate, curate, funnel, verdicts
from plinth.corpus.dedup import exact
from plinth.corpus.dedup.near import minhash
from plinth.corpus.dedup.parameters import Dedup
from plinth.corpus.documents.documents import document_id
from plinth.corpus.policy import policy
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.protected import contamination, holdout
from plinth.corpus.protected.parameters import Contamination, Holdout
from plinth.provenance import ledger
from plinth.records import Manifest, Step
from plinth.storage.parts import DOCUMENT_SCHEMA, REJECT_SCHEMA, write_table
from plinth.storage.workspace import Workspace
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.shards import shards
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.tokenizer import tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from tests import shared
from tests.rights import permitting

RULES = (
    {"reason": "licence", "drop": "not licence.permitted"},
    {"reason": "too_few_words", "drop": "gopher_quality.word_count < 20"},
    {"reason": "few_stop_words", "drop": "gopher_quality.stop_words < 2"},
)
RIGHTS = permitting("MIT", "CC0-1.0")
POLICY = Policy.model_validate({"rules": RULES, "edits": ({"reason": "pii", "spans": "pii.spans"},)})
ANNOTATORS: Mapping[str, Mapping[str, Any]] = {
    "gopher_quality": {}, "licence": {"permitted": ["MIT", "CC0-1.0"]}, "pii": {}
}  # fmt: skip
#: By bucket: documents of 30 words, of 10 words, of a forbidden license, copies of the first, with an address.
PLANTED = {"web": (40, 6, 3, 4, 2), "prose": (24, 2, 0, 0, 0)}
PARTS = 2
SHARED = {"exact": "dedup/exact", "near": "dedup/minhash", "holdout": "holdout", "contamination": "contamination"}
SOURCE = {
    "kind": "text", "licence": "per-document", "domain": "a.example", "snapshot": "2026-46", "text_field": "text",
    "suffixes": [], "terms": {"train": True, "redistribute": False, "commercial": True},
}  # fmt: skip


def texts(bucket: str) -> list[tuple[str, str]]:
    """Text and license of every document of a bucket."""
    picks = random.Random(bucket)
    whole, short, foreign, copies, personal = PLANTED[bucket]
    found = [(_prose(picks, 30), "MIT") for _ in range(whole)]
    found += [(_prose(picks, 10), "MIT") for _ in range(short)]
    found += [(_prose(picks, 30), "GPL-3.0-only") for _ in range(foreign)]
    found += [found[row] for row in range(copies)]
    found += [(f"{_prose(picks, 30)} Write to ann{row}@tidewater-house.net at once.", "MIT") for row in range(personal)]
    return found


def build(folder: Path, rules: Policy = POLICY) -> Context:
    """The corpus in `folder / "workspace"`, from documents to the funnel."""
    ctx = Context(Workspace(folder / "workspace").ensure())
    documents = {bucket: _documents(ctx, bucket) for bucket in PLANTED}
    policies = {bucket: _judged(ctx, bucket, documents[bucket], rules) for bucket in PLANTED}
    dedup = Dedup()
    same = _keep(ctx, exact.run(ctx, dedup, documents, policies))
    signed = {b: _keep(ctx, minhash.signatures(ctx, b, dedup.minhash, documents[b])) for b in PLANTED}
    near = _keep(ctx, minhash.run(ctx, dedup, documents, signed, same))
    held = _keep(ctx, holdout.run(ctx, Holdout(fraction=0.1), documents, near))
    overlap = _keep(ctx, contamination.run(ctx, Contamination(), documents, near, held))
    decided = {
        b: _keep(ctx, verdicts.run(ctx, b, documents[b], policies[b], same, near, held, overlap)) for b in PLANTED
    }
    curated = {b: _keep(ctx, curate.run(ctx, b, documents[b], decided[b], RIGHTS)) for b in PLANTED}
    trained = _keep(ctx, tokenizer.run(ctx, TokenizerParameters(vocab_size=300), curated))
    cut = {b: _keep(ctx, shards.run(ctx, b, Shards(tokens_per_shard=1024), trained, curated[b])) for b in PLANTED}
    phases = (Phase(name="main", fraction=1.0, weights={"web": 0.75, "prose": 0.25}),)
    wanted = Mixture(sequence_tokens=16, total_tokens=16 * 40, phases=phases, block_sequences=4, max_epochs=50)
    mixed = _keep(ctx, mixture.run(ctx, wanted, cut))
    _keep(ctx, funnel.run(ctx, documents, decided, curated, cut, mixed))
    return ctx


def copy(factory: pytest.TempPathFactory, folder: Path) -> Context:
    """A copy in `folder / "workspace"` of the corpus, which is built once in a test session."""
    return Context(Workspace(shared.copied(shared.once(factory, "judged", build), folder) / "workspace"))


def ledger_of(ctx: Context, **changes: Any) -> ledger.Made:
    """Build a ledger from published manifests."""

    def each(kind: str) -> dict[str, Manifest]:
        return {bucket: ctx.refs.current(f"{bucket}/{kind}") for bucket in PLANTED}

    parts: dict[str, Any] = {
        "documents": each("documents"),
        "policies": each("policy"),
        "verdicts": each("verdicts"),
        "annotations": {name: each(name) for name in ANNOTATORS},
        "shared": {name: ctx.refs.current(key) for name, key in SHARED.items()},
        "curated": each("curated"),
        "shards": each("shards"),
        "mixture": ctx.refs.current("mixture"),
    }
    return ledger.Made(**(parts | changes))


def uri(bucket: str, row: int) -> str:
    """The address of a document."""
    return f"https://{bucket}.example/{row}"


def _keep(ctx: Context, made: Manifest) -> Manifest:
    ctx.refs.publish(made, key=made.digest)
    return made


def _prose(picks: random.Random, words: int) -> str:
    """Words of their own between stop words, so that no two texts are alike."""
    return " ".join(picks.choice(("the", "of", "and", "to")) if i % 3 == 0 else _word(picks) for i in range(words))


def _word(picks: random.Random) -> str:
    return "".join(picks.choice("abcdefghijklmnoprstuvw") for _ in range(6))


def _documents(ctx: Context, bucket: str) -> Manifest:
    rows = [
        {
            "id": document_id(bucket, uri(bucket, row), text.encode()),
            "text": text,
            "uri": uri(bucket, row),
            "captured_at": None,
            "snapshot": "2026-46",
            "licence": licence,
            "mime": "text/plain",
            "source_bytes": len(text) + 7,
            "extra": '{"domain": "a.example"}',
        }
        for row, (text, licence) in enumerate(texts(bucket))
    ]
    cut = len(rows) // PARTS
    slices = (rows[:cut], rows[cut:])
    parts = [
        write_table(ctx.store, f"part-{i:05d}.parquet", pa.Table.from_pylist(own, DOCUMENT_SCHEMA))
        for i, own in enumerate(slices)
    ]
    refused = [
        {"uri": f"https://{bucket}.example/bad{i}", "where": f"record {i}", "reason": "empty", "detail": "0 of 9 bytes",
         "source_bytes": 9} for i in range(3)
    ]  # fmt: skip
    table = pa.Table.from_pylist(refused, REJECT_SCHEMA)
    parts.append(write_table(ctx.store, "rejects-00000.parquet", table, stats={"rejects": {"empty": 3}}))
    stats = {
        "documents": len(rows),
        "text_bytes": sum(len(row["text"]) for row in rows),
        "source_bytes": sum(row["source_bytes"] for row in rows),
        "rejects": {"empty": 3},
    }
    step = Step(name="documents", version="1", params={"sources": [SOURCE]})
    return _keep(ctx, manifest(f"{bucket}/documents", step, {f"{bucket}/sources": "5" * 64}, parts, stats))


def _judged(ctx: Context, bucket: str, documents: Manifest, rules: Policy) -> Manifest:
    scores = {name: annotate.run(ctx, bucket, name, raw, documents) for name, raw in ANNOTATORS.items()}
    for made in scores.values():
        _keep(ctx, made)
    return _keep(ctx, policy.run(ctx, bucket, rules, documents, scores, RIGHTS))
