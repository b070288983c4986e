"""Judge a tokenizer before anything is built on it.

By bucket and by language: fertility (tokens per whitespace-separated word; Rust et al. 2021, "How Good is
Your Tokenizer?"), bytes and characters per token, and fragments (tokens that are a piece of a character).
Over the whole vocabulary: round trip of arbitrary Unicode, all 256 bytes present, tokens that never occur.

Measured on the documents of each part that come first by hash, up to a number of bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import Tokenizer

from plinth.compute.stage import Item, add_stats, manifest, run_items
from plinth.context import Context
from plinth.errors import IntegrityError
from plinth.recipe import tokens as recipe
from plinth.records import Blob, Manifest, Part, Step
from plinth.storage.parts import iter_aligned, iter_batches, read_table, write_table
from plinth.storage.store import Store
from plinth.tokens import encode, tokenizer
from plinth.tokens.sample import hashes
from plinth.tokens.vocabulary import token_bytes

ASSET = "tokenizer/audit"
VERSION = "1"
UNKNOWN = "und"  # ISO 639-3: undetermined

_COUNTS = pa.schema([pa.field("count", pa.int64(), nullable=False)])


@dataclass(frozen=True)
class _Task:
    bucket: str
    tokenizer: Blob
    curated: Part
    documents: Part
    language: Part
    column: str
    budget_bytes: int


def run(
    ctx: Context,
    params: recipe.Tokenizer,
    trained: Manifest,
    curated: Mapping[str, Manifest],
    documents: Mapping[str, Manifest],
    language: Mapping[str, Manifest],
    *,
    column: str = "label",
) -> Manifest:
    """Measure a trained tokenizer on curated text; stats only.

    Languages come from `column` of the language sidecars, joined to curated documents by id. Stats:
    `buckets` and `languages` (sums, `fertility`, `bytes_per_token`, `characters_per_token`,
    `fragment_share`; null where there is nothing to divide by), `round_trip` (texts, failed), `byte_tokens`,
    `unused_tokens`, `unused_share`, and `failures`: a line for every bound that does not hold, which a
    blocking check reads.

    Raises:
        IntegrityError: curated parts or sidecars do not belong to the documents.
    """
    (blob,) = [part.blob for part in trained.named(tokenizer.FILE)]
    step = Step(name="tokens.audit", version=VERSION, params={"bytes": params.audit_bytes_per_part, "column": column})
    tasks = [
        _Task(bucket, blob, *parts, column, params.audit_bytes_per_part)
        for bucket in sorted(curated)
        for parts in _together(bucket, curated[bucket], documents[bucket], language[bucket])
    ]
    items = [Item(_digests(task), task, task.curated.rows) for task in tasks]
    found = [parts[0] for parts in run_items(ctx, step, _measure, items, label=ASSET)]
    own: dict[str, list[Part]] = {bucket: [] for bucket in sorted(curated)}
    for task, part in zip(tasks, found, strict=True):
        own[task.bucket].append(part)
    stats = _vocabulary(encode.load(ctx.store, blob), _used(ctx.store, found))
    stats["buckets"] = {bucket: _facts(_totals(parts)) for bucket, parts in own.items()}
    stats["languages"] = {name: _facts(sums) for name, sums in sorted(add_stats(found).get("languages", {}).items())}
    stats["round_trip"] = _round_trip(encode.load(ctx.store, blob), found)
    stats["failures"] = failures(params, stats)
    inputs: dict[str, Manifest | str] = {tokenizer.ASSET: trained}
    for name, group in (("curated", curated), ("documents", documents), ("language", language)):
        inputs |= {f"{bucket}/{name}": source for bucket, source in sorted(group.items()) if bucket in curated}
    return manifest(ASSET, step, inputs, [], stats)


def failures(params: recipe.Tokenizer, stats: Mapping[str, Any]) -> list[str]:
    """A line for every bound of the recipe that the measured statistics break."""
    lines = []
    for bucket, facts in stats["buckets"].items():
        fertility, density = facts["fertility"], facts["bytes_per_token"]
        if fertility is not None and fertility > params.max_fertility:
            lines.append(f"{bucket}: fertility {fertility:.3f} tokens per word, at most {params.max_fertility} allowed")
        if density is not None and density < params.min_bytes_per_token:
            lines.append(f"{bucket}: {density:.3f} bytes per token, at least {params.min_bytes_per_token} asked")
    if stats["round_trip"]["failed"]:
        lines.append(f"{stats['round_trip']['failed']} of {stats['round_trip']['texts']} texts did not come back")
    if stats["byte_tokens"] != 256:
        lines.append(f"{stats['byte_tokens']} of 256 bytes are in the vocabulary: some text cannot be written")
    return lines


def trial_texts() -> Iterator[str]:
    """Texts that break tokenizers: every script, every kind of space, control characters, combining marks."""
    points = [*range(0x3000), *range(0x3000, 0x110000, 61)]
    plain = [chr(point) for point in points if not 0xD800 <= point < 0xE000]
    for start in range(0, len(plain), 512):
        yield "".join(plain[start : start + 512])
    yield from ("", " ", "\n\n\n", " \t \u00a0\u2003 x", "a\r\nb\r", "e\u0301\u0327" * 99, "👩‍👩‍👧‍👦" * 9)
    yield from ("<|endoftext|>", "<|pad|>x<|endoftext|>", "0123456789" * 9, "'s'S don't", "\ufeffx\x00\x1c\x7f")


def _together(bucket: str, curated: Manifest, documents: Manifest, language: Manifest) -> list[tuple[Part, Part, Part]]:
    """Each curated part with the documents it was made from and their languages: parts of one name."""
    sources = {part.name: part for part in documents.named("part-")}
    labels = {part.name: part for part in language.named("part-")}
    lost = [part.name for part in curated.named("part-") if part.name not in sources or part.name not in labels]
    if lost:
        raise IntegrityError(
            f"curated parts of {bucket} have no documents or languages of the same name",
            found=lost,
            expected=f"among {sorted(sources)}",
            remedy="make the bucket's language and curated assets again from the current documents",
        )
    return [(part, sources[part.name], labels[part.name]) for part in curated.named("part-")]


def _digests(task: _Task) -> tuple[str, ...]:
    parts = (task.curated, task.documents, task.language)
    return (task.tokenizer.sha256, *(part.blob.sha256 for part in parts))


def _measure(store: Store, task: _Task) -> tuple[Part, ...]:
    """Token counts of the part's sample; sums by language and failed round trips in the stats."""
    trained = encode.load(store, task.tokenizer)
    table = token_bytes(trained)
    whole = np.array([_is_text(data) for data in table])
    used = np.zeros(len(table), dtype=np.int64)
    sums: dict[str, Counter[str]] = {}
    chosen = _chosen(store, task)
    labels = _labels(store, task, {identity for identity, _ in chosen})
    failed = 0
    with encode.parallel(False):
        encoded = encode.encode_texts(trained, (text for _, text in chosen), "<u4")
        for (identity, text), ids in zip(chosen, encoded, strict=True):
            used += np.bincount(ids, minlength=len(table))
            data = text.encode()
            failed += b"".join([table[token] for token in ids.tolist()]) != data
            facts = {"documents": 1, "words": len(text.split()), "characters": len(text), "bytes": len(data)}
            facts |= {"tokens": len(ids), "fragments": len(ids) - int(whole[ids].sum())}
            sums.setdefault(labels.get(identity, UNKNOWN), Counter()).update(facts)
    stats = {
        "languages": {name: dict(found) for name, found in sorted(sums.items())},
        "round_trip": {"texts": len(chosen), "failed": failed},
    }
    return (write_table(store, "counts.parquet", pa.table([used], schema=_COUNTS), stats=stats),)


def _chosen(store: Store, task: _Task) -> list[tuple[bytes, str]]:
    """Ids and texts of the documents that come first by hash, in documents' order, within the budget."""
    lines, sizes = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for batch in iter_batches(store, task.curated, ["id", "text"]):
        lines.append(hashes(batch.column("id")))
        sizes.append(np.asarray(pc.binary_length(batch.column("text"))).astype(np.int64))
    order = np.argsort(np.concatenate(lines), kind="stable")
    held = np.minimum(np.concatenate(sizes)[order], task.budget_bytes).cumsum()
    rows = np.sort(order[: max(1, int(np.searchsorted(held, task.budget_bytes, side="right")))])
    chosen, first = [], 0
    for batch in iter_batches(store, task.curated, ["id", "text"]):
        picked = batch.take(pa.array(rows[(rows >= first) & (rows < first + batch.num_rows)] - first))
        texts = (text.encode()[: task.budget_bytes] for text in picked.column("text").to_pylist())
        cut = (data.decode(errors="ignore") for data in texts)
        chosen += list(zip(picked.column("id").to_pylist(), cut, strict=True))
        first += batch.num_rows
    return chosen


def _labels(store: Store, task: _Task, wanted: set[bytes]) -> dict[bytes, str]:
    labels: dict[bytes, str] = {}
    for ids, named in iter_aligned(store, (task.documents, ["id"]), (task.language, [task.column])):
        pairs = zip(ids.column("id").to_pylist(), named.column(task.column).to_pylist(), strict=True)
        labels |= {identity: name or UNKNOWN for identity, name in pairs if identity in wanted}
    return labels


def _totals(parts: Iterable[Part]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        for sums in part.stats["languages"].values():
            total.update(sums)
    return dict(total)


def _facts(sums: Mapping[str, int]) -> dict[str, Any]:
    names = ("documents", "words", "characters", "bytes", "tokens", "fragments")
    counts = {name: sums.get(name, 0) for name in names}
    return counts | {
        "fertility": _ratio(counts["tokens"], counts["words"]),
        "bytes_per_token": _ratio(counts["bytes"], counts["tokens"]),
        "characters_per_token": _ratio(counts["characters"], counts["tokens"]),
        "fragment_share": _ratio(counts["fragments"], counts["tokens"]),
    }


def _ratio(above: int, below: int) -> float | None:
    return above / below if below else None


def _used(store: Store, parts: Iterable[Part]) -> NDArray[np.int64]:
    columns = [read_table(store, part)["count"].to_numpy() for part in parts]
    return np.sum(columns, axis=0) if columns else np.empty(0, np.int64)


def _vocabulary(trained: Tokenizer, used: NDArray[np.int64]) -> dict[str, Any]:
    table = token_bytes(trained)
    ordinary = np.array([bool(data) for data in table])
    unused = int((ordinary & (used == 0)).sum()) if used.size else int(ordinary.sum())
    return {
        "vocab_size": len(table),
        "byte_tokens": len({data for data in table if len(data) == 1}),
        "unused_tokens": unused,
        "unused_share": unused / int(ordinary.sum()),
    }


def _round_trip(trained: Tokenizer, parts: Iterable[Part]) -> dict[str, int]:
    total: dict[str, int] = {"texts": 0, "failed": 0} | add_stats(parts).get("round_trip", {})
    table = token_bytes(trained)
    texts = list(trial_texts())
    for text, ids in zip(texts, encode.encode_texts(trained, texts, "<u4"), strict=True):
        total["texts"] += 1
        total["failed"] += b"".join(table[token] for token in ids.tolist()) != text.encode()
    return total


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
