"""Index of protected items, and the frequency of their words and n-grams in the training text."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context, Item, run_items
from plinth.corpus.dedup.run_tree import levels
from plinth.corpus.protected.parameters import Protected
from plinth.corpus.sidecars import Slot
from plinth.records import Part, Step
from plinth.storage.parts import iter_aligned, read_table, write_table
from plinth.storage.store import Store
from plinth_text.arrays import F32, I32, I64, U64, Bools
from plinth_text.compiled import compiled
from plinth_text.libm import log
from plinth_text.words import HashLookup, ngram_hashes

# Counts by key over all parts: a map that writes sparse tables, and a reduce that opens a bounded number at a time.
#
# A tally is a table of one `key` and columns that are summed, or of which the greatest counts. Merging is associative,
# with a bound as well (min(a + b, bound)), so the result does not depend on how parts are grouped.

#: By column what merging does to it.
How = Mapping[str, Literal["sum", "max"]]
COUNTED: How = {"documents": "sum"}


def sparse(store: Store, name: str, counts: I64, documents: int = 0) -> Part:
    """Write the positive counts with their positions, and the number of documents that were examined."""
    key = np.flatnonzero(counts)
    return write_table(store, name, pa.table({"key": key, "documents": counts[key]}), stats={"looked_at": documents})


def dense(store: Store, parts: Sequence[Part], size: int, bound: int | None = None) -> I64:
    """Add up the counts of all parts by position. In the returned array [size], sums are at most `bound`."""
    found = np.zeros(size, dtype=np.int64)
    for part in parts:
        table = read_table(store, part)
        found[table["key"].to_numpy()] += table["documents"].to_numpy()
    return found if bound is None else np.minimum(found, bound)


def narrowed(
    ctx: Context, step: Step, parts: Sequence[Part], label: str, how: How = COUNTED, bound: int | None = None
) -> tuple[Part, ...]:
    """Merge tables of counts until one task can open all of them, and return the merged tables.

    Args:
        step: step of the merges; its parameters include the bound.
        how: columns and their aggregation (`sum` or `max`).
        bound: maximum value of a sum; larger sums are reduced to it.
    """

    def merged(groups: Sequence[Sequence[Part]]) -> list[Part]:
        items = [Item(tuple(one.blob.sha256 for one in some), _Merge(tuple(some), how, bound)) for some in groups]
        return [made[0] for made in run_items(ctx, step, _merge, items, label=label)]

    return tuple(levels(parts, merged))


def merge(tables: Sequence[pa.Table], how: How = COUNTED, bound: int | None = None) -> pa.Table:
    """Merge tables into one table with one row per key, sorted by key. Sums above `bound` are reduced to it."""
    table = pa.concat_tables(tables)
    found = table.group_by("key").aggregate(list(how.items())).sort_by("key")
    columns: dict[str, Any] = {"key": found["key"]}
    for name, what in how.items():
        column = found[f"{name}_{what}"].cast(table.schema.field(name).type)
        bounded = bound is not None and what == "sum"
        columns[name] = pc.min_element_wise(column, bound).cast(column.type) if bounded else column
    return pa.table(columns)


@dataclass(frozen=True)
class _Merge:
    parts: tuple[Part, ...]
    how: How
    bound: int | None


def _merge(store: Store, task: _Merge) -> tuple[Part, ...]:
    table = merge([read_table(store, part) for part in task.parts], task.how, task.bound)
    looked_at = sum(int(part.stats.get("looked_at", 0)) for part in task.parts)
    return (write_table(store, "tally.parquet", table, stats={"looked_at": looked_at}),)


# All protected items as flat arrays, small enough for every worker to hold.
#
# **Evidence** of an item are its n-grams of 13 words (of all its words, where it has fewer). One that more training
# documents have than a bound is boilerplate, as GPT-3 counts it (Brown et al. 2020, appendix C): a license, an
# instruction to the reader. Its words do not count as evidence. An item without evidence is undecided: nothing can
# tell whether training text holds it. So is one too short to be looked for.
#
# Weights of words are their inverse document frequencies in the training text itself (a sample of it, by hash of
# the id): words that every page has weigh nothing, whatever the sets are about.

#: An n-gram that more items than this hold is a turn of phrase, and names none of them.
MAX_ITEMS = 200


@dataclass(frozen=True)
class ProtectedIndex:
    """Index of the protected items.

    Args:
        starts: [items + 1] index of each item's first word.
        words: hashes of the words of all items, in order.
        numbers: the words of all items as indices into `vocabulary`.
        vocabulary: distinct word hashes, sorted.
        evidence: distinct hashes of the n-grams that count as evidence unless they are common, sorted.
        evident: [words + 1] for each word, the number of earlier words that count as evidence.
        grams: distinct hashes of the shorter n-grams that find candidates, sorted.
        posting_starts: [grams + 1] index of each n-gram's first posting.
        postings: items that contain each n-gram.
        weights: [vocabulary] weight of each word; 1 until weights are measured.
    """

    starts: I64
    words: U64
    numbers: I32
    vocabulary: U64
    evidence: U64
    evident: I64
    grams: U64
    posting_starts: I64
    postings: I32
    weights: F32

    def lookups(self) -> tuple[HashLookup, HashLookup]:
        """Return two lookup tables: for the n-grams that find candidates, and for words."""
        return HashLookup(self.grams), HashLookup(self.vocabulary)

    def of_item(self, values: I64) -> I64:
        """Return the count inside each item, computed from running counts by word."""
        return values[self.starts[1:]] - values[self.starts[:-1]]

    def evident_words(self) -> I64:
        """Return for each item the number of its words that count as evidence of a copy."""
        return self.of_item(self.evident)

    def without_evidence(self) -> Bools:
        """Return a mask of the items without an n-gram that finds candidates. The text of such an item is too short or
        entirely common."""
        found: Bools = np.bincount(self.postings, minlength=self.starts.size - 1) == 0
        return found


def items(store: Store, sets: Mapping[str, Part]) -> tuple[list[tuple[str, str]], pa.Array]:
    """Return the (set, item) names of all items, in the order of set and line, and the texts of the items."""
    tables = {name: read_table(store, sets[name], ["item", "text"]) for name in sorted(sets)}
    names = [(name, item) for name, table in tables.items() for item in table["item"].to_pylist()]
    chunks = [chunk for table in tables.values() for chunk in table["text"].chunks]
    return names, pa.concat_arrays(chunks) if chunks else pa.array([], pa.large_string())


def build(texts: pa.Array, params: Protected) -> ProtectedIndex:
    """Build the index of items, in which all words count as evidence. Items with fewer than `min_words` words have no
    n-grams in the index."""
    starts, words = ngram_hashes(texts, 1)
    vocabulary, numbers = np.unique(words, return_inverse=True)
    hashes, valid = _evidence_of(starts, words, params)
    plain = ProtectedIndex(
        starts=starts,
        words=words,
        numbers=numbers.astype(np.int32),
        vocabulary=vocabulary,
        evidence=np.unique(hashes[valid]),
        evident=np.arange(words.size + 1, dtype=np.int64),
        grams=np.empty(0, np.uint64),
        posting_starts=np.zeros(1, np.int64),
        postings=np.empty(0, np.int32),
        weights=np.ones(vocabulary.size, dtype=np.float32),
    )
    return _posted(plain, params)


def weighed(
    index: ProtectedIndex, params: Protected, documents: int, frequencies: I64, common: Bools
) -> ProtectedIndex:
    """Return the index with measured word weights and without common n-grams.

    The weight of a word is log((D + 2) / (df + 1)), if `df` of `D` sampled documents contain it. No weight is 0,
    because otherwise an item could not be found if all its words are in the only sampled document.

    Args:
        common: [evidence] True for n-grams that too many training documents contain.
    """
    hashes, valid = _evidence_of(index.starts, index.words, params)
    boilerplate = np.zeros(index.words.size, dtype=np.bool_)
    boilerplate[valid] = common[np.searchsorted(index.evidence, hashes[valid])]
    evident = np.empty(index.words.size + 1, dtype=np.int64)
    count_uncovered(index.starts, boilerplate, params.longest_words, evident)
    weights = log((documents + 2) / (frequencies + 1)).astype(np.float32)
    return _posted(replace(index, weights=weights, evident=evident), params)


def ngrams_of(words: U64, starts: I64, n: int) -> tuple[I64, U64]:
    """Return the n-grams of texts whose words are already hashed: starts [D + 1] and hashes, as in
    `hashes.ngram_hashes`."""
    counts = np.diff(starts)
    gram_starts = np.concatenate([[0], np.cumsum(np.maximum(counts - n + 1, np.minimum(counts, 1)))]).astype(np.int64)
    out = np.empty(int(gram_starts[-1]), dtype=np.uint64)
    hash_rolled(words, starts, n, gram_starts, out)
    return gram_starts, out


def evidence_lengths(index: ProtectedIndex, params: Protected) -> list[int]:
    """Return the lengths in words of all n-grams that count as evidence."""
    lengths = np.diff(index.starts)
    return [int(n) for n in np.unique(np.minimum(lengths[lengths >= params.min_words], params.longest_words))]


def write(store: Store, index: ProtectedIndex) -> Part:
    """Write the index of protected items as one part."""
    out = io.BytesIO()
    for name in _fields(index):
        np.save(out, getattr(index, name), allow_pickle=False)
    return Part(name="index.npys", blob=store.put_bytes(out.getvalue()), rows=index.starts.size - 1)


def read(store: Store, part: Part) -> ProtectedIndex:
    """Read the index of protected items from its part."""
    with store.open_path(part.blob).open("rb") as stream:
        return ProtectedIndex(*(np.load(stream, allow_pickle=False) for _ in fields(ProtectedIndex)))


def _posted(index: ProtectedIndex, params: Protected) -> ProtectedIndex:
    """Return the index with the n-grams that find candidates. These n-grams are from items that are long enough, and
    they contain or touch a word that counts as evidence."""
    n, count = params.candidate_words, index.starts.size - 1
    gram_starts, grams = ngrams_of(index.words, index.starts, n)
    owner = np.repeat(np.arange(count, dtype=np.int32), np.diff(gram_starts))
    first, last = index.starts[owner], index.starts[owner + 1]
    place = first + np.arange(grams.size) - gram_starts[owner]
    # one word to either side: of an item whose last word alone is evidence, two n-grams stay
    near = index.evident[np.minimum(place + n + 1, last)] > index.evident[np.maximum(place - 1, first)]
    kept = near & (last - first >= params.min_words)
    pairs = np.unique(np.stack([grams[kept], owner[kept].astype(np.uint64)], axis=1), axis=0)
    distinct, counts = np.unique(pairs[:, 0], return_counts=True)
    telling = counts <= MAX_ITEMS
    return replace(
        index,
        grams=distinct[telling],
        posting_starts=np.concatenate([[0], np.cumsum(counts[telling])]).astype(np.int64),
        postings=pairs[np.repeat(telling, counts), 1].astype(np.int32),
    )


def _evidence_of(starts: I64, words: U64, params: Protected) -> tuple[U64, Bools]:
    """Return for each word the hash of the evidence n-gram that begins at the word, and whether there is one."""
    hashes, valid = np.zeros(words.size, dtype=np.uint64), np.zeros(words.size, dtype=np.bool_)
    if params.boilerplate_documents is not None:
        find_evidence(starts, words, params.min_words, params.longest_words, hashes, valid)
    return hashes, valid


def _fields(index: ProtectedIndex) -> dict[str, Any]:
    return {field.name: getattr(index, field.name) for field in fields(ProtectedIndex)}


@compiled
def hash_rolled(words: U64, starts: I64, n: int, gram_starts: I64, out: U64) -> None:
    """Write the n-gram hashes of all texts to `out`. The hashes of text i begin at `gram_starts[i]`."""


@compiled
def find_evidence(starts: I64, words: U64, least: int, most: int, hashes: U64, valid: Bools) -> None:
    """Write to `hashes` the hash of the evidence n-gram that begins at each word, and to `valid` whether there is an
    evidence n-gram."""


@compiled
def count_uncovered(starts: I64, boilerplate: Bools, most: int, evident: I64) -> None:
    """Write to `evident`, for each word, the number of earlier words that no common n-gram covers."""


# What protected items are compared with, and how common their n-grams and words are in it.
#
# Considered are the documents that would train: survivors that are not held out. Compared and counted are those of them
# that no set denies by their address: pages of a benchmark's mirrors are dropped anyway, and must not make its items
# common.

#: Sampling interval of documents for the weights of words.
SAMPLED = 8


@dataclass(frozen=True)
class Work:
    """Task for one part of documents, with its sidecars and the index of protected items."""

    slot: Slot
    params: Protected
    index: Part


def considered(
    store: Store, slot: Slot, params: Protected, columns: Sequence[str] = ("id", "text", "uri")
) -> Iterator[tuple[pa.RecordBatch, Bools, Bools]]:
    """Yield batches of documents with two masks. The first marks documents that would be used for training, the second
    documents from a URL that a protected set denies."""
    sources = ((slot.documents, list(columns)), (slot.sides["survivors"], ["survivor"]))
    for documents, near, held in iter_aligned(store, *sources, (slot.sides["holdout"], ["held_out"])):
        mask = pc.and_not(near.column("survivor"), held.column("held_out"))
        yield documents, mask.to_numpy(zero_copy_only=False), _denied(documents, params)


def _denied(documents: pa.RecordBatch, params: Protected) -> Bools:
    found = np.zeros(documents.num_rows, dtype=np.bool_)
    for piece in sorted({piece for family in params.families.values() for piece in family.deny}):
        held = pc.match_substring(documents.column("uri"), piece, ignore_case=True)
        found |= held.to_numpy(zero_copy_only=False)
    return found


def counted(store: Store, work: Work) -> tuple[Part, ...]:
    """Return two tables of counts for a part: the number of sampled documents that contain each word of the items, and
    the number of documents that contain each evidence n-gram. The second number is at most `boilerplate_documents` + 1.
    """
    index, limit = read(store, work.index), work.params.boilerplate_documents
    words, evidence = HashLookup(index.vocabulary), HashLookup(index.evidence)
    lengths = evidence_lengths(index, work.params) if limit is not None else []
    by_word, by_gram = (np.zeros(size, dtype=np.int64) for size in (index.vocabulary.size, index.evidence.size))
    last_word, last_gram = np.full(by_word.size, -1, dtype=np.int32), np.full(by_gram.size, -1, dtype=np.int32)
    first = looked_at = 0
    for documents, would_train, denied in considered(store, work.slot, work.params):
        mask = would_train & ~denied
        starts, hashes = ngram_hashes(documents.column("text").filter(pa.array(mask)), 1)
        drawn = _drawn(documents.column("id").filter(pa.array(mask)))
        count_once(starts, words.find(hashes), drawn, first, last_word, by_word, np.iinfo(np.int64).max)
        for n in lengths:
            gram_starts, grams = ngrams_of(hashes, starts, n)
            every = np.ones(drawn.size, dtype=np.bool_)
            count_once(gram_starts, evidence.find(grams), every, first, last_gram, by_gram, (limit or 0) + 1)
        first, looked_at = first + drawn.size, looked_at + int(drawn.sum())
    return (
        sparse(store, "words.parquet", by_word, looked_at),
        sparse(store, "grams.parquet", by_gram),
    )


def _drawn(ids: pa.Array) -> Bools:
    found: Bools = np.frombuffer(b"".join(ids.to_pylist()), dtype="<u4").reshape(-1, 4)[:, 2] % SAMPLED == 0
    return found


@compiled
def count_once(starts: I64, where: I64, drawn: Bools, first: int, last: I32, counts: I64, most: int) -> None:
    """Count each index in `where` once per document, up to `most`. `last` has the last document in which an index was
    counted."""
