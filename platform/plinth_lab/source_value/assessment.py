"""Assessment of a new source from a bounded sample, with intervals.

    acceptance   shares of the sample that parse, pass the policy, and are not duplicates
    density      share of the kept text that is new to the corpus; share of new word n-grams, compared with that of
                 held-out text of the corpus
    tokenizer    bytes per token, compared with the corpus
    effective    text and tokens that the whole source would add to D_eff, with its factors
    proxy        bits per byte of held-out slices for a small byte model, with the sample added to a piece of the
                 corpus, and with the same amount of other corpus text instead
    test         number of test documents in the sample

Intervals are 95% bootstrap intervals over documents (`evaluation.statistics.ratio`). The intervals do not cover
differences between files; use another seed to see these differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.compute.context import Context
from plinth.corpus.sources.parameters import Bucket
from plinth.corpus.sources.record import EXCLUSIONS, damage
from plinth.errors import MissingError
from plinth.evaluation import statistics
from plinth.recipe.recipe import Corpus
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth_lab.source_value import proxy
from plinth_lab.source_value.sample import (
    Annotators,
    SourceSample,
    against,
    batches_of,
    inside,
    known_ngrams,
    new_ngrams,
    scratch,
    signed,
    take,
)

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

SAMPLE_BYTES = 32 * 2**20
#: Bytes of the corpus's text that are read, for its n-grams and for the proxy.
CORPUS_BYTES = 32 * 2**20
TOKENIZED_BYTES = 4 * 2**20
TOP_REASONS = 12
#: Share of word 5-grams in the sample from which a document of the test text counts as included.
HELD = 0.8


@dataclass(frozen=True)
class ReferenceCorpus:
    """Published corpus that a new source is compared with, by bucket."""

    documents: Mapping[str, Manifest]
    signatures: Mapping[str, Manifest]
    verdicts: Mapping[str, Manifest]
    curated: Mapping[str, Manifest]
    shards: Mapping[str, Manifest]


def known(ctx: Context, without: str | None = None) -> ReferenceCorpus:
    """Return the published corpus without the bucket `without`.

    Raises:
        MissingError: no bucket has curated text.
    """
    kinds = ("documents", "minhash", "verdicts", "curated", "shards")
    made = {ref.asset: ref.digest for ref in ctx.refs.all()}
    buckets = sorted(asset.removesuffix("/curated") for asset in made if asset.endswith("/curated"))
    whole = [b for b in buckets if b != without and all(f"{b}/{kind}" in made for kind in kinds[:4])]
    if not whole:
        raise MissingError(
            "there is no corpus to compare the source with",
            found="no bucket with curated text",
            remedy="run the pipeline first, up to the funnel: `plinth run --select funnel`",
        )
    columns = [{b: ctx.refs.load(made[f"{b}/{kind}"]) for b in whole if f"{b}/{kind}" in made} for kind in kinds]
    return ReferenceCorpus(*columns)


def assess(
    ctx: Context,
    bucket: Bucket,
    corpus: Corpus,
    annotators: Annotators,
    have: ReferenceCorpus,
    *,
    sample_bytes: int = SAMPLE_BYTES,
    corpus_bytes: int = CORPUS_BYTES,
    seed: int = 1,
    test: Sequence[str] = (),
) -> dict[str, Any]:
    """Return all measures in the module's list for a new source, which is described like a bucket.

    Args:
        bucket: sources and policy.
        corpus: corpus section of the recipe, with policies and deduplication.
        annotators: parameters by annotator, as in the pipeline.
        have: corpus that the source is compared with.
        sample_bytes: number of bytes to read from the source.
        corpus_bytes: number of bytes to read from curated text.
        seed: random seed for the sample and the bootstrap.
        test: test documents that no arm of an experiment may train on.

    Returns:
        `sample`, `acceptance`, `reasons`, `density`, `tokenizer`, `effective`, `proxy`, and `test` if test text is
        given. A measure with an interval is `{"value", "low", "high"}`.

    Raises:
        SourceError: the source cannot be read.
        MissingError: the model or list of an annotator has not been built.
    """
    with scratch(ctx) as own:
        sample = take(ctx, own, bucket, corpus, annotators, sample_bytes, seed)
        facts = _read(own, sample)
    params = corpus.dedup.minhash
    marks = signed([facts.texts.slice(at, 1024) for at in range(0, len(facts.texts), 1024)], params)
    ours = against(ctx, marks, params, have.documents, have.signatures, have.verdicts) >= params.threshold
    twice = inside(marks, params.threshold)
    accepted = facts.kept & ~ours & ~twice
    texts = facts.texts.filter(pa.array(accepted))
    tokenizer = _tokenizer(ctx, texts, have, seed)
    return {
        "sample": {
            "files": sample.files, "of_files": sample.of_files, "source_bytes": sample.source_bytes,
            "of_bytes": sample.of_bytes, "documents": len(facts.size), "text_bytes": int(facts.size.sum()),
        },
        "acceptance": _acceptance(sample, facts, ours, twice, accepted, seed),
        "reasons": _reasons(sample),
        "density": _density(ctx, facts, ours | twice, texts, have, corpus_bytes, seed),
        "tokenizer": tokenizer,
        "effective": _effective(ctx, sample, facts, accepted, tokenizer, seed),
        "proxy": proxy.deltas(ctx, texts.to_pylist(), have.curated, corpus_bytes, seed),
        **({"test": _held(facts, test)} if test else {}),
    }  # fmt: skip


@dataclass(frozen=True)
class _Facts:
    """Documents in a source's sample, [D]: texts, lengths in bytes, and a mask of documents that the policy keeps."""

    texts: pa.LargeStringArray
    size: Floats
    kept: Bools


def _read(own: Context, sample: SourceSample) -> _Facts:
    """Read the whole sample into memory, which is possible because the sample size is limited."""
    columns = [read_table(own.store, part, ["text"]).column("text") for part in sample.documents.named("part-")]
    keep = [read_table(own.store, part, ["keep"]).column("keep") for part in sample.policy.named("part-")]
    texts = pa.concat_arrays([pa.array([], pa.large_string()), *(c for one in columns for c in one.chunks)])
    flags = np.array([value for one in keep for value in one.to_pylist()], dtype=np.bool_)
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return _Facts(texts, np.diff(offsets).astype(np.float64) if len(texts) else np.empty(0), flags)


def _ratio(above: Floats, below: Floats, seed: int, scale: float = 1.0) -> dict[str, float]:
    """Return the sum of `above` divided by the sum of `below`, both [D], times `scale`, with its interval."""
    if not below.sum():
        return {"value": 0.0, "low": 0.0, "high": 0.0}
    found = statistics.ratio(above, below, seed=seed)
    return {name: scale * end for name, end in (("value", found.value), ("low", found.low), ("high", found.high))}


def _share(above: Floats, below: Floats, seed: int, scale: float = 1.0) -> dict[str, float]:
    """Return a share with its interval: the ratio from `_ratio`, limited to the range from 0 to `scale`.

    `above` is a part of `below`.
    """
    found = _ratio(above, below, seed)
    return {name: scale * min(max(end, 0.0), 1.0) for name, end in found.items()}


def _acceptance(
    sample: SourceSample, facts: _Facts, ours: Bools, twice: Bools, accepted: Bools, seed: int
) -> dict[str, Any]:
    one = np.ones(len(facts.size))
    failed = damage(sample.documents.stats["rejects"])
    records = len(one) + failed
    return {
        "parsed": len(one) / records if records else 0.0,
        "kept": _share(facts.kept.astype(np.float64), one, seed),
        "duplicates_of_corpus": _share((facts.kept & ours).astype(np.float64), facts.kept.astype(np.float64), seed),
        "duplicates_in_itself": _share((facts.kept & twice).astype(np.float64), facts.kept.astype(np.float64), seed),
        "accepted": _share(accepted.astype(np.float64), one, seed),
        "accepted_bytes": _share(accepted * facts.size, facts.size, seed),
    }


def _reasons(sample: SourceSample) -> list[dict[str, Any]]:
    """Return the most frequent reasons for which records and documents were removed, with counts."""
    refused = sample.documents.stats["rejects"].items()
    rejects = {reason if reason in EXCLUSIONS else f"{reason} (not parsed)": n for reason, n in refused}
    counted = {**rejects, **sample.policy.stats["dropped"]}
    ordered = sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:TOP_REASONS]
    return [{"reason": reason, "documents": n} for reason, n in ordered]


def _density(
    ctx: Context,
    facts: _Facts,
    again: Bools,
    texts: pa.Array,
    have: ReferenceCorpus,
    limit: int,
    seed: int,
) -> dict[str, Any]:
    kept = facts.kept.astype(np.float64)
    parts = proxy.shuffled([p for one in have.curated.values() for p in one.named("part-")], seed)
    grams = known_ngrams(batches_of(ctx.store, parts, limit))
    total, fresh = new_ngrams([texts], grams)
    held = [p for one in have.curated.values() for p in one.named("heldout-")]
    own_total, own_fresh = new_ngrams(batches_of(ctx.store, held, TOKENIZED_BYTES), grams)
    return {
        "unique_text": _share(kept * ~again * facts.size, kept * facts.size, seed),
        "new_ngrams": _share(fresh, total, seed),
        "new_ngrams_of_held_out": _share(own_fresh, own_total, seed),
    }


def _tokenizer(ctx: Context, texts: pa.Array, have: ReferenceCorpus, seed: int) -> dict[str, Any]:
    """Return the bytes per token of the sample and of every bucket, or an empty dictionary without a tokenizer."""
    trained = ctx.refs.published("tokenizer")
    if trained is None or not have.shards:
        return {}
    from plinth.tokens.tokenizer import encode, tokenizer

    (file,) = trained.named(tokenizer.FILE)
    chosen, held = list[str](), 0
    for text in texts.to_pylist():
        if held >= TOKENIZED_BYTES:
            break
        chosen.append(text)
        held += len(text.encode())
    dtype = encode.token_dtype(trained.stats["vocab_size"])
    model = encode.load(ctx.store, file.blob)
    tokens = np.array([len(ids) + 1 for ids in encode.encode_texts(model, chosen, dtype)], dtype=np.float64)
    size = np.array([len(text.encode()) for text in chosen], dtype=np.float64)
    buckets = {
        b: one.stats["text_bytes"] / one.stats["tokens"] for b, one in have.shards.items() if one.stats["tokens"]
    }
    bytes_, counted = (sum(one.stats[k] for one in have.shards.values()) for k in ("text_bytes", "tokens"))
    return {
        "bytes_per_token": _ratio(size, tokens, seed),
        "corpus": bytes_ / counted if counted else 0.0,
        "buckets": buckets,
    }


def _held(facts: _Facts, test: Sequence[str]) -> dict[str, int]:
    """Return the number of test documents, and the number of test documents that are in the sample."""
    batches = (facts.texts.slice(at, 1024) for at in range(0, len(facts.texts), 1024))
    total, fresh = new_ngrams([pa.array(test, pa.large_string())], known_ngrams(batches))
    return {"documents": len(test), "held": int(((total > 0) & (total - fresh >= HELD * total)).sum())}


def _effective(
    ctx: Context, sample: SourceSample, facts: _Facts, accepted: Bools, tokenizer: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    """Extrapolate the accepted text of the sample to the whole source, and compare it with the corpus.

    The interval for tokens combines the worse ends of both intervals (bytes, and bytes per token). If no text is
    accepted, the corpus's bytes per token are used.
    """
    scale = facts.size.sum() / sample.share if len(facts.size) else 0.0
    gained = _share(accepted * facts.size, facts.size, seed, scale)
    funnel = ctx.refs.published("funnel")
    now = float(funnel.stats["total"]["effective"]["effective_bytes"]) if funnel else 0.0
    rate = tokenizer.get("bytes_per_token", {})
    known = bool(rate) and rate["value"] > 0
    other = {"value": "value", "low": "high", "high": "low"}
    tokens = {name: value / rate[other[name]] for name, value in gained.items()} if known else {}
    gain = {name: value / now for name, value in gained.items()} if now else {}
    per_token = rate["value"] if known else tokenizer.get("corpus", 0.0)
    return {
        "bytes": gained, "tokens": tokens, "corpus_bytes": now, "gain": gain,
        "factors": _factors(sample, facts, accepted, scale / per_token if per_token else 0.0),
    }  # fmt: skip


def _factors(sample: SourceSample, facts: _Facts, accepted: Bools, tokens: float) -> dict[str, float]:
    """Return the factors of D_eff as in the funnel. The product of these factors is the number of accepted tokens.

    Args:
        tokens: number of tokens in all text that parsed.
    """
    parsed, failed = len(facts.size), damage(sample.documents.stats["rejects"])
    whole, kept, ours = (float((flags * facts.size).sum()) for flags in (np.ones(parsed), facts.kept, accepted))
    rho_parse = parsed / (parsed + failed) if parsed else 0.0
    return {
        "nominal_tokens": tokens / rho_parse if rho_parse else 0.0,
        "rho_parse": rho_parse,
        "rho_quality": kept / whole if whole else 0.0,
        "r_dup": 1 - ours / kept if kept else 0.0,
    }
