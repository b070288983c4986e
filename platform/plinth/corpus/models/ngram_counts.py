"""Vocabulary and n-gram counts of a bounded sample of documents, and the interpolated modified Kneser–Ney estimates
(Chen and Goodman 1998) computed from them as in Heafield et al. (2013).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth import fingerprint
from plinth.compute.context import Context, Item, run_items
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_batches, read_table, write_table
from plinth.storage.store import Store
from plinth_text.arrays import F64, I64, U16, U64, Bools
from plinth_text.libm import log10
from plinth_text.scoring import BEGIN, BOUNDARY, END, normalised_token, tokens, vocabulary_table, word_numbers

# Counts for an n-gram model: vocabulary and n-grams of a capped sample of documents.
#
#     words     per part: distinct tokens of its sampled documents
#     vocab     once: the most frequent tokens of all parts, numbered by rank
#     grams     per part: distinct n-grams of each order, with counts
#     merged    once per order: the same over all parts
#
# A document is in the sample when the hash of its id is below a cut, so the sample is the same for any order of
# parts and workers. The cut bounds the text that is read and with it all memory from here on.

VERSION = "1"
#: Numbers below: unknown, begin, end of a sentence.
RESERVED = 3
#: Maximum length of a word; longer tokens count as unknown.
MAX_WORD_BYTES = 200

_WORDS = pa.schema([("hash", pa.uint64()), ("word", pa.string()), ("count", pa.int64())])
_GRAMS = pa.schema([("key", pa.uint64()), ("count", pa.int64())])


@dataclass(frozen=True)
class HashRange:
    """Sample of documents: all documents whose 32-bit hash of the id is in the range [low, high)."""

    low: int
    high: int


def sample(documents: Mapping[str, Manifest], max_bytes: int, held_back: float) -> tuple[HashRange, HashRange]:
    """Return two disjoint samples for training and for measurement. Both samples together have at most about
    `max_bytes` of text, and the second sample has the share `held_back` of it."""
    size = sum(int(one.stats["text_bytes"]) for one in documents.values())
    share = min(1.0, max_bytes / size) if size else 1.0
    middle = round(share * (1 - held_back) * 2**32)
    return HashRange(0, middle), HashRange(middle, round(share * 2**32))


def sampled(store: Store, part: Part, chosen: HashRange) -> Iterator[pa.Array]:
    """Yield the texts of a part's sampled documents, batch by batch."""
    for batch in iter_batches(store, part, ["id", "text"]):
        drawn = np.frombuffer(b"".join(batch.column("id").to_pylist()), dtype="<u4").reshape(-1, 4)[:, 1]
        yield batch.column("text").filter(pa.array((drawn >= chosen.low) & (drawn < chosen.high)))


def vocabulary(ctx: Context, documents: Mapping[str, Manifest], chosen: HashRange, size: int, label: str) -> Part:
    """Return the most frequent tokens of the sample, at most `size`, by rank. Each token occurs at least twice."""
    step = Step(
        name="ngram/words",
        version=VERSION,
        params={"low": chosen.low, "high": chosen.high},
        libraries=fingerprint.UNICODE,
    )
    parts = [part for name in sorted(documents) for part in documents[name].named("part-")]
    items = [Item((part.blob.sha256,), (part, chosen), part.rows) for part in parts]
    counted = tuple(one[0] for one in run_items(ctx, step, _words, items, label=f"{label}: words"))
    step = Step(name="ngram/vocabulary", version=VERSION, params={"size": size})
    item = Item(tuple(part.blob.sha256 for part in counted), (counted, size))
    return run_items(ctx, step, _vocabulary, [item], label=f"{label}: vocabulary")[0][0]


def grams(
    ctx: Context, documents: Mapping[str, Manifest], chosen: HashRange, words: Part, order: int, label: str
) -> tuple[Part, ...]:
    """Return the distinct n-grams of the sample as sorted keys with counts, one part per order from 1."""
    step = Step(name="ngram/grams", version=VERSION, params={"low": chosen.low, "high": chosen.high, "order": order})
    parts = [part for name in sorted(documents) for part in documents[name].named("part-")]
    items = [Item((part.blob.sha256, words.blob.sha256), (part, chosen, words, order), part.rows) for part in parts]
    found = run_items(ctx, step, _grams, items, label=f"{label}: n-grams")
    step = Step(name="ngram/merged", version=VERSION)
    merges = [tuple(own[n] for own in found) for n in range(order)]
    items = [Item(tuple(part.blob.sha256 for part in own), own) for own in merges]
    return tuple(one[0] for one in run_items(ctx, step, _merged, items, label=f"{label}: sum"))


def lookup(store: Store, words: Part) -> tuple[U64, U16]:
    """Return the lookup table from a token's hash to its number."""
    hashes = read_table(store, words, ["hash"]).column("hash").to_numpy()
    return vocabulary_table(hashes, np.arange(RESERVED, RESERVED + hashes.size, dtype=np.uint16))


def _words(store: Store, task: tuple[Part, HashRange]) -> tuple[Part, ...]:
    found = _WORDS.empty_table()
    for texts in sampled(store, *task):
        found = _sum_words(pa.concat_tables([found, _batch_words(texts)]))
    return (write_table(store, "words.parquet", found.sort_by("hash")),)


def _batch_words(texts: pa.Array) -> pa.Table:
    hashes, places, _ = tokens(texts)
    real = np.flatnonzero(hashes != BOUNDARY)
    distinct, first, counts = np.unique(hashes[real], return_index=True, return_counts=True)
    # Offsets are into the buffer of the texts, whatever slice of it they are.
    data = memoryview(texts.buffers()[2]) if len(texts) else memoryview(b"")
    where = places[real][first]
    fits = where[:, 1] - where[:, 0] <= MAX_WORD_BYTES
    words = [normalised_token(bytes(data[a:b]).decode("utf-8", "replace")) for a, b in where[fits].tolist()]
    return pa.table({"hash": distinct[fits], "word": words, "count": counts[fits]}, schema=_WORDS)


def _sum_words(table: pa.Table) -> pa.Table:
    summed = table.group_by("hash", use_threads=False).aggregate([("word", "min"), ("count", "sum")])
    return pa.table([summed["hash"], summed["word_min"], summed["count_sum"]], schema=_WORDS)


def _vocabulary(store: Store, task: tuple[tuple[Part, ...], int]) -> tuple[Part, ...]:
    parts, size = task
    found = _WORDS.empty_table()
    for part in parts:
        found = _sum_words(pa.concat_tables([found, read_table(store, part)]))
    often = found.filter(pc.greater(found["count"], 1))
    ranked = often.sort_by([("count", "descending"), ("word", "ascending"), ("hash", "ascending")])
    table = ranked.slice(0, size - RESERVED)
    stats = {"distinct": found.num_rows, "tokens": pc.sum(found["count"]).as_py() or 0}
    return (write_table(store, "vocabulary.parquet", table).model_copy(update={"stats": stats}),)


def _grams(store: Store, task: tuple[Part, HashRange, Part, int]) -> tuple[Part, ...]:
    part, chosen, words, order = task
    table, numbers = lookup(store, words)
    keys: list[list[U64]] = [[] for _ in range(order)]
    for texts in sampled(store, part, chosen):
        stream = with_begins(word_numbers(tokens(texts)[0], table, numbers))
        for n in range(1, order + 1):
            keys[n - 1].append(windows(stream, n))
    return tuple(
        _counted(store, f"grams-{n + 1}.parquet", np.concatenate([np.empty(0, np.uint64), *own]))
        for n, own in enumerate(keys)
    )


def with_begins(stream: U16) -> U16:
    """Return the token stream with `BEGIN` inserted before every sentence."""
    starts = np.flatnonzero(np.r_[True, stream[:-1] == END]) if stream.size else np.empty(0, np.int64)
    return np.insert(stream, starts, BEGIN).astype(np.uint16)


def windows(stream: U16, n: int) -> U64:
    """Return the keys of all n-grams inside sentences. `BEGIN` is not counted as a unigram."""
    size = stream.size - n + 1
    if size <= 0:
        return np.empty(0, dtype=np.uint64)
    keys = np.zeros(size, dtype=np.uint64)
    inside = np.ones(size, dtype=bool)
    for k in range(n):
        words = stream[k : k + size]
        keys |= words.astype(np.uint64) << np.uint64(16 * k)
        if k:
            inside &= words != BEGIN
    if n == 1:
        inside = stream != BEGIN
    return keys[inside]


def _counted(store: Store, name: str, keys: U64) -> Part:
    distinct, counts = np.unique(keys, return_counts=True)
    return write_table(store, name, pa.table({"key": distinct, "count": counts}, schema=_GRAMS))


def _merged(store: Store, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    keys, counts = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
    for part in parts:
        table = read_table(store, part)
        keys, counts = _add(keys, counts, table["key"].to_numpy(), table["count"].to_numpy())
    return (write_table(store, "merged.parquet", pa.table({"key": keys, "count": counts}, schema=_GRAMS)),)


def _add(keys: U64, counts: I64, more: U64, times: I64) -> tuple[U64, I64]:
    both, where = np.unique(np.concatenate([keys, more]), return_inverse=True)
    out = np.zeros(both.size, dtype=np.int64)
    np.add.at(out, where, np.concatenate([counts, times]))
    return both, out


# Interpolated modified Kneser–Ney (Chen and Goodman 1998), computed as Heafield et al. (2013) do.
#
#     adjusted count    of the highest order and of n-grams that begin a sentence: the count; of the others: how many
#                       different words precede the n-gram
#     discounts         of each order, from how many n-grams have adjusted counts 1 to 4
#     p(w | c)          (adjusted − discount) / Σ adjusted  +  backoff(c) · p(w | c without its first word)
#     p(w)              the same, with 1 / vocabulary at the bottom
#
# An n-gram that is pruned gives its discounted mass to the back-off of its context, so probabilities of a context
# still sum to one; what is kept keeps its suffix and its context.


WORD_BITS = np.uint64(16)
#: Where an order is too small to estimate discounts from, those that lmplz falls back to.
FALLBACK = (0.5, 1.0, 1.5)
#: A context whose words were all kept undiscounted would back off with log10 of zero.
LEAST = 1e-30


@dataclass(frozen=True)
class OrderEstimate:
    """Estimates for one n-gram order: sorted keys, log10 probabilities and log10 back-offs, [n] each, and the
    discounts."""

    keys: U64
    logp: F64
    backoff: F64
    discounts: tuple[float, float, float]


def estimate(keys: list[U64], counts: list[I64], prune: tuple[int, ...]) -> list[OrderEstimate]:
    """Estimate the n-gram model from raw counts.

    Args:
        keys, counts: sorted keys and their counts, by order from 1. The keys of order 1 are all words of the
            vocabulary; `BEGIN` and words that do not occur have count 0.
        prune: by order from 1, n-grams with at most this adjusted count are dropped; the first value is 0.
    """
    adjusted = [_adjusted(keys, counts, n) for n in range(len(keys))]
    discounts = [_discounts(one) for one in adjusted]
    kept = _kept(keys, adjusted, prune)
    made: list[OrderEstimate] = []
    p = np.empty(0)
    predicted = keys[0].size - 1  # all words but the one that begins a sentence
    for n in range(len(keys)):
        less = adjusted[n] - np.asarray([0.0, *discounts[n]])[np.minimum(adjusted[n], 3)]
        contexts, where = _contexts(keys[n], n)
        total = np.bincount(where, adjusted[n], contexts.size)
        share = np.where(kept[n], less, 0.0) / total[where]
        backoff = 1.0 - np.bincount(where, share, contexts.size)
        lower = np.full(keys[n].size, 1.0 / predicted) if n == 0 else p[_find(keys[n - 1], keys[n] >> WORD_BITS)]
        p = share + backoff[where] * lower
        if n:
            made[-1].backoff[_find(keys[n - 1], contexts)] = log10(np.maximum(backoff, LEAST))
        made.append(OrderEstimate(keys[n], log10(p), np.zeros(p.size), discounts[n]))
    return [_only(one, keep) for one, keep in zip(made, kept, strict=True)]


def _adjusted(keys: list[U64], counts: list[I64], n: int) -> I64:
    """Return the adjusted counts of the n-grams of order n + 1."""
    if n + 1 == len(keys):
        return counts[n]
    found = np.zeros(keys[n].size, dtype=np.int64)
    np.add.at(found, _find(keys[n], keys[n + 1] >> WORD_BITS), 1)
    begins = (keys[n] & np.uint64(0xFFFF)) == BEGIN
    return np.where(begins, counts[n], found)


def _discounts(adjusted: I64) -> tuple[float, float, float]:
    t1, t2, t3, t4 = (int((adjusted == k).sum()) for k in (1, 2, 3, 4))
    if not (t1 and t2 and t3 and t4):
        return FALLBACK
    y = t1 / (t1 + 2 * t2)
    found = (1 - 2 * y * t2 / t1, 2 - 3 * y * t3 / t2, 3 - 4 * y * t4 / t3)
    return found if all(0 <= d <= k for k, d in enumerate(found, start=1)) else FALLBACK


def _kept(keys: list[U64], adjusted: list[I64], prune: tuple[int, ...]) -> list[Bools]:
    """Return a mask of the n-grams to keep, by order. An n-gram is kept if its count is above the limit, or if it is
    the suffix or context of a longer n-gram that is kept."""
    kept = [count > limit for count, limit in zip(adjusted, prune, strict=True)]
    for n in range(len(keys) - 1, 0, -1):
        longer = keys[n][kept[n]]
        kept[n - 1][_find(keys[n - 1], longer >> WORD_BITS)] = True
        kept[n - 1][_find(keys[n - 1], longer & _mask(n))] = True
    kept[0][:] = True
    return kept


def _contexts(keys: U64, n: int) -> tuple[U64, I64]:
    """Return the sorted distinct contexts of n-grams, and for each key the index of its context."""
    if n == 0:
        return np.zeros(1, dtype=np.uint64), np.zeros(keys.size, dtype=np.int64)
    distinct, where = np.unique(keys & _mask(n), return_inverse=True)
    return distinct, where


def _only(one: OrderEstimate, keep: Bools) -> OrderEstimate:
    return OrderEstimate(one.keys[keep], one.logp[keep], one.backoff[keep], one.discounts)


def _mask(words: int) -> np.uint64:
    return np.uint64((1 << (16 * words)) - 1)


def _find(keys: U64, wanted: U64) -> I64:
    """Return the positions in `keys` of the keys in `wanted`, all of which must be present."""
    return np.searchsorted(keys, wanted)
