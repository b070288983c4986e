"""Audit stage: measure a tokenizer and compare it with the limits of the recipe, before it is used.

For each bucket, language and domain, the audit measures fertility, bytes and characters per token, and fragments
(tokens that are a piece of a character). Fertility is the number of tokens per whitespace-separated word (Rust et al.
2021, "How Good is Your Tokenizer?"); in scripts without spaces, each character counts as a word. The audit also tests
round trips of arbitrary Unicode and measures the properties in `vocabulary`.

In each part, the documents with the lowest hashes are measured, up to a number of bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import Tokenizer

from plinth import fingerprint
from plinth.compute.context import Context, Item, add_stats, manifest, run_items
from plinth.errors import IntegrityError
from plinth.records import Blob, Manifest, Part, Step
from plinth.storage.parts import iter_aligned, iter_batches, read_table, write_table
from plinth.storage.store import Store
from plinth.tokens.tokenizer import encode, tokenizer, vocabulary
from plinth.tokens.tokenizer.parameters import KEPT, UNSPACED_FERTILITY, TokenizerParameters
from plinth.tokens.tokenizer.sample import sample_keys
from plinth.tokens.tokenizer.vocabulary import token_bytes
from plinth_text.unicode import UNSPACED, word_counts

ASSET = "tokenizer/audit"
VERSION = "4"


def run(
    ctx: Context,
    params: TokenizerParameters,
    trained: Manifest,
    curated: Mapping[str, Manifest],
    documents: Mapping[str, Manifest],
    language: Mapping[str, Manifest],
    *,
    column: str = "label",
) -> Manifest:
    """Measure a trained tokenizer on curated text; the manifest has only statistics.

    Languages come from `column` of the language sidecars, joined to curated documents by id. Domains come from the
    documents.

    Stats:
        buckets, languages, domains: sums, `fertility`, `bytes_per_token`, `characters_per_token`, `fragment_share` by
            group; null if the divisor is 0.
        round_trip: number of texts, and of texts that failed.
        failures: one line for every limit that is violated; a blocking check reads them.
        unjudged: one line for every limit whose group has no text.
        all values of `vocabulary_facts`.

    Raises:
        IntegrityError: curated parts or sidecars do not belong to the documents.
    """
    (blob,) = [part.blob for part in trained.named(tokenizer.FILE)]
    step = Step(
        name="tokens.audit",
        version=VERSION,
        params={"bytes": params.audit_bytes_per_part, "column": column},
        libraries=fingerprint.libraries("unicode", *encode.LIBRARIES),
    )
    tasks = [
        AuditTask(bucket, blob, *parts, column, params.audit_bytes_per_part)
        for bucket in sorted(curated)
        for parts in _together(bucket, curated[bucket], documents[bucket], language[bucket])
    ]
    items = [Item(task.digests, task, task.curated.rows) for task in tasks]
    found = [parts[0] for parts in run_items(ctx, step, measure, items, label=ASSET, unit="documents")]
    own: dict[str, list[Part]] = {bucket: [] for bucket in sorted(curated)}
    for task, part in zip(tasks, found, strict=True):
        own[task.bucket].append(part)
    counts, held = (_summed(ctx.store, found, column) for column in COUNTS.names)
    model = encode.load(ctx.store, blob)
    stats = vocabulary.vocabulary_facts(model, counts, held)
    stats["buckets"] = {bucket: _facts(_totals(parts)) for bucket, parts in own.items()}
    for axis in AXES:
        stats[axis] = {name: _facts(sums) for name, sums in sorted(add_stats(found).get(axis, {}).items())}
    stats["round_trip"] = _round_trip(model, found)
    stats["failures"], stats["unjudged"] = failures(params, stats), unjudged(params, stats)
    inputs: dict[str, Manifest | str] = {tokenizer.ASSET: trained}
    for name, group in (("curated", curated), ("documents", documents), ("language", language)):
        inputs |= {f"{bucket}/{name}": source for bucket, source in sorted(group.items()) if bucket in curated}
    return manifest(ASSET, step, inputs, [], stats)


def failures(params: TokenizerParameters, stats: Mapping[str, Any]) -> list[str]:
    """Return one line for every limit of the recipe that the measured statistics violate."""
    bounds = {bucket: _limit(params, facts) for bucket, facts in stats["buckets"].items()}
    lines = [
        *_too_many("bucket ", stats["buckets"], bounds),
        *_too_many("language ", stats["languages"], params.max_fertility_by_language),
        *_too_many("domain ", stats["domains"], params.max_fertility_by_domain),
    ]
    for bucket, facts in stats["buckets"].items():
        density = facts["bytes_per_token"]
        if density is not None and density < params.min_bytes_per_token:
            lines.append(f"bucket {bucket}: {density:.2f} bytes per token, minimum {params.min_bytes_per_token:g}")
    if stats["round_trip"]["failed"]:
        lines.append(f"{stats['round_trip']['failed']} of {stats['round_trip']['texts']} texts did not round-trip")
    return lines + vocabulary.failures(params, dict(stats))


def unjudged(params: TokenizerParameters, stats: Mapping[str, Any]) -> list[str]:
    """Return one line for every bucket and every limit without text to measure.

    One more line is returned if the vocabulary has fewer tokens than the recipe requests.
    """
    lines = [
        f"bucket {bucket}: not measured, it has no curated text"
        for bucket, facts in stats["buckets"].items()
        if not facts["tokens"]
    ]
    bounds = {"languages": params.max_fertility_by_language, "domains": params.max_fertility_by_domain}
    lines += [
        f"{axis[:-1]} {name}: has a limit but no text; have: {', '.join(sorted(stats[axis])) or 'none'}"
        for axis, named in bounds.items()
        for name in named
        if stats[axis].get(name, {}).get("fertility") is None
    ]
    if params.kind not in KEPT and stats["vocab_size"] < params.vocab_size:
        lines.append(
            f"the vocabulary has {stats['vocab_size']:,} tokens, tokenizer.vocab_size is {params.vocab_size:,}: "
            "the text has no more pairs to merge; add text or lower vocab_size"
        )
    return lines


def _limit(params: TokenizerParameters, facts: Mapping[str, Any]) -> float:
    """Return the fertility limit of a bucket.

    This limit is the mean of the limits of the bucket's scripts, weighted by the words or characters of each script.
    """
    limits = {name: params.max_fertility_by_script.get(name, UNSPACED_FERTILITY) for name in facts["scripts"]}
    allowed = params.max_fertility * facts["spaced"]
    allowed += sum(limits[name] * count for name, count in facts["scripts"].items())
    whole = facts["spaced"] + sum(facts["scripts"].values())
    return allowed / whole if whole else params.max_fertility


def _too_many(what: str, groups: Mapping[str, Any], bounds: Mapping[str, float]) -> Iterator[str]:
    for name, bound in bounds.items():
        facts = groups.get(name, {})
        if facts.get("fertility") is not None and facts["fertility"] > bound:
            yield f"{what}{name}: fertility {facts['fertility']:.2f} {_unit(facts)}, limit {bound:.3g}"


def _unit(facts: Mapping[str, Any]) -> str:
    if not facts["scripts"]:
        return "tokens per word"
    scripts = ", ".join(name.capitalize() for name in facts["scripts"])
    return f"tokens per {'word or ' * bool(facts['spaced'])}character ({scripts})"


def trial_texts() -> Iterator[str]:
    """Yield texts that often break tokenizers: all scripts, all spaces, control characters, combining marks."""
    points = [*range(0x3000), *range(0x3000, 0x110000, 61)]
    plain = [chr(point) for point in points if not 0xD800 <= point < 0xE000]
    for start in range(0, len(plain), 512):
        yield "".join(plain[start : start + 512])
    yield from ("", " ", "\n\n\n", " \t \u00a0\u2003 x", "a\r\nb\r", "e\u0301\u0327" * 99, "👩‍👩‍👧‍👦" * 9)
    yield from ("<|endoftext|>", "<|pad|>x<|endoftext|>", "0123456789" * 9, "'s'S don't", "\ufeffx\x00\x1c\x7f")
    yield from ("<0x41><0xFF>", "\u2581a \u2581", "\ue000\ue001 \ue004", "x" * 5000, "नमस्ते दुनिया")


def _together(bucket: str, curated: Manifest, documents: Manifest, language: Manifest) -> list[tuple[Part, Part, Part]]:
    """Return each curated part with its document part and its language part, which have the same name."""
    sources = {part.name: part for part in documents.named("part-")}
    labels = {part.name: part for part in language.named("part-")}
    lost = [part.name for part in curated.named("part-") if part.name not in sources or part.name not in labels]
    if lost:
        raise IntegrityError(
            f"curated parts of {bucket} have no document or language parts of the same name",
            found=lost,
            expected=f"parts among {sorted(sources)}",
            remedy="recompute the bucket's language and curated assets from the current documents",
        )
    return [(part, sources[part.name], labels[part.name]) for part in curated.named("part-")]


def _totals(parts: Iterable[Part]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        for sums in part.stats["languages"].values():
            total.update(sums)
    return dict(total)


def _facts(sums: Mapping[str, int]) -> dict[str, Any]:
    names = ("documents", "characters", "bytes", "tokens", "fragments")
    counts = {name: sums.get(name, 0) for name in names}
    scripts = {name: sums[name] for name in UNSPACED.values() if sums.get(name)}
    spaced = sums.get("words", 0)
    counts["words"] = spaced + sum(scripts.values())
    return counts | {
        "spaced": spaced,
        "scripts": scripts,
        "fertility": _ratio(counts["tokens"], counts["words"]),
        "bytes_per_token": _ratio(counts["bytes"], counts["tokens"]),
        "characters_per_token": _ratio(counts["characters"], counts["tokens"]),
        "fragment_share": _ratio(counts["fragments"], counts["tokens"]),
    }


def _ratio(above: int, below: int) -> float | None:
    return above / below if below else None


def _summed(store: Store, parts: Iterable[Part], column: str) -> NDArray[np.int64]:
    columns = [read_table(store, part)[column].to_numpy() for part in parts]
    total: NDArray[np.int64] = np.sum(columns, axis=0)
    return total


def _round_trip(trained: Tokenizer, parts: Iterable[Part]) -> dict[str, int]:
    total: dict[str, int] = {"texts": 0, "failed": 0} | add_stats(parts).get("round_trip", {})
    table = token_bytes(trained)
    texts = list(trial_texts())
    for text, ids in zip(texts, encode.encode_texts(trained, texts, "<u4"), strict=True):
        total["texts"] += 1
        total["failed"] += b"".join(table[token] for token in ids.tolist()) != text.encode()
    return total


UNKNOWN = "und"  # ISO 639-3: undetermined

COUNTS = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("count", "documents")])

#: Groups of texts, in addition to their bucket.
AXES = ("languages", "domains")


@dataclass(frozen=True)
class AuditTask:
    """Curated part to audit, with the documents from which it was made and their languages."""

    bucket: str
    tokenizer: Blob
    curated: Part
    documents: Part
    language: Part
    column: str
    budget_bytes: int

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests of the inputs, which identify the measurement in the cache."""
        parts = (self.curated, self.documents, self.language)
        return (self.tokenizer.sha256, *(part.blob.sha256 for part in parts))


def measure(store: Store, task: AuditTask) -> tuple[Part, ...]:
    """Return the token counts of a part's sample. The stats have sums by language and domain, and round trips."""
    trained = encode.load(store, task.tokenizer)
    table = token_bytes(trained)
    whole = np.array([_is_text(data) for data in table])
    counts = np.zeros((2, len(table)), dtype=np.int64)  # occurrences, documents
    sums: dict[str, dict[str, Counter[str]]] = {axis: {} for axis in AXES}
    chosen = _chosen(store, task)
    labels = _labels(store, task, {one.id for one in chosen})
    failed = 0
    with encode.parallel(False):
        encoded = encode.encode_texts(trained, (one.text for one in chosen), "<u4")
        for one, ids in zip(chosen, encoded, strict=True):
            own = np.bincount(ids, minlength=len(table))
            counts += np.stack([own, own > 0])
            data = one.text.encode()
            failed += b"".join([table[token] for token in ids.tolist()]) != data
            facts = {"documents": 1, **word_counts(one.text), "characters": len(one.text), "bytes": len(data)}
            facts |= {"tokens": len(ids), "fragments": len(ids) - int(whole[ids].sum())}
            for axis, name in zip(AXES, (labels.get(one.id, UNKNOWN), one.domain), strict=True):
                sums[axis].setdefault(name, Counter()).update(facts)
    stats: dict[str, Any] = {
        axis: {name: dict(found) for name, found in sorted(groups.items())} for axis, groups in sums.items()
    }
    stats["round_trip"] = {"texts": len(chosen), "failed": failed}
    return (write_table(store, "counts.parquet", pa.table(list(counts), schema=COUNTS), stats=stats),)


@dataclass(frozen=True)
class _Chosen:
    id: bytes
    text: str
    domain: str


def _chosen(store: Store, task: AuditTask) -> list[_Chosen]:
    """Return the documents of the sample: those with the lowest hashes within the budget, in the order of the part."""
    lines, sizes = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for batch in iter_batches(store, task.curated, ["id", "text"]):
        lines.append(sample_keys(batch.column("id")))
        sizes.append(np.asarray(pc.binary_length(batch.column("text"))).astype(np.int64))
    order = np.argsort(np.concatenate(lines), kind="stable")
    held = np.minimum(np.concatenate(sizes)[order], task.budget_bytes).cumsum()
    rows = np.sort(order[: max(1, int(np.searchsorted(held, task.budget_bytes, side="right")))])
    chosen: list[_Chosen] = []
    first = 0
    for batch in iter_batches(store, task.curated, ["id", "text", "extra"]):
        picked = batch.take(pa.array(rows[(rows >= first) & (rows < first + batch.num_rows)] - first))
        for row in picked.to_pylist():
            text = row["text"].encode()[: task.budget_bytes].decode(errors="ignore")
            chosen.append(_Chosen(row["id"], text, json.loads(row["extra"]).get("domain") or UNKNOWN))
        first += batch.num_rows
    return chosen


def _labels(store: Store, task: AuditTask, wanted: set[bytes]) -> dict[bytes, str]:
    labels: dict[bytes, str] = {}
    for ids, named in iter_aligned(store, (task.documents, ["id"]), (task.language, [task.column])):
        pairs = zip(ids.column("id").to_pylist(), named.column(task.column).to_pylist(), strict=True)
        labels |= {identity: name or UNKNOWN for identity, name in pairs if identity in wanted}
    return labels


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
