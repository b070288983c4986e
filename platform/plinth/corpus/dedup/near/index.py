"""Index of the band keys and text digests of every document, stored as sorted runs that are merged but never changed.

    bands      per part, computed once: the sorted band keys of the signatures, with their rows
    digests    per part, computed once: the sorted digests of the normalized texts (`exact`)
    tree       runs of several parts; small runs are merged when there are many (`run_tree`)

A new snapshot adds leaves to the tree and merges a few branches. Old texts and old signatures are not read again. The
index contains all documents, including dropped documents. Readers of the index therefore select documents by a mask.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.compute.context import Context, Item, manifest, run_items
from plinth.corpus.dedup import exact, sorted_runs
from plinth.corpus.dedup.near import linking
from plinth.corpus.dedup.parameters import MinHash
from plinth.corpus.dedup.run_tree import Branch, tree
from plinth.corpus.sidecars import Slot, slots
from plinth.errors import IntegrityError
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_batches, read_row
from plinth.storage.store import Store
from plinth_text import unicode
from plinth_text.arrays import U32, U64
from plinth_text.similarity import band_keys, permutations
from plinth_text.words import jaccard

ASSET = "dedup/index"
VERSION = "1"
BANDS = "bands"
LAYOUT = "layout.json"


def run(
    ctx: Context, params: MinHash, documents: Mapping[str, Manifest], signatures: Mapping[str, Manifest]
) -> Manifest:
    """Build the index of all documents.

    Args:
        documents: `{b}/documents` by bucket.
        signatures: `{b}/minhash` by bucket, computed with the same parameters.

    Returns:
        Manifest of `bands-*`, `digests-*` and `layout.json`, which lists the indexed documents.

    Raises:
        IntegrityError: signatures do not belong to the documents, or a part is damaged.
    """
    places = slots(documents, signatures=signatures)
    step = Step(name=ASSET, version=VERSION, params=identity(params))
    kinds = {BANDS: bands(ctx, params, places), exact.DIGESTS: digests(ctx, places)}
    parts = [
        branch.part.model_copy(update={"name": f"{kind}-{i:05d}.run"})
        for kind, branches in kinds.items()
        for i, branch in enumerate(branches)
    ]
    described = {
        "documents": [
            {"bucket": slot.bucket, "part": slot.documents.name, "rows": slot.documents.rows,
             "sha256": slot.documents.blob.sha256, "signatures": slot.sides["signatures"].model_dump(mode="json")}
            for slot in places
        ],
        "runs": {kind: [list(branch.slots) for branch in branches] for kind, branches in kinds.items()},
    }  # fmt: skip
    stats = {"documents": sum(slot.documents.rows for slot in places), "runs": len(parts)}
    inputs = {f"{bucket}/documents": one for bucket, one in documents.items()}
    inputs |= {f"{bucket}/minhash": one for bucket, one in signatures.items()}
    return manifest(ASSET, step, inputs, [*parts, ctx.store_json(LAYOUT, described)], stats)


def identity(params: MinHash) -> dict[str, Any]:
    """Return the parameters that band keys depend on. An index with different parameters is never read."""
    return {"version": VERSION, **params.signature(), "bands": params.bands, "rows": params.rows}


def bands(ctx: Context, params: MinHash, places: Sequence[Slot]) -> list[Branch]:
    """Return the band keys of every document that has words, as sorted runs of (key, address)."""
    step = Step(name="dedup/index/bands", version=VERSION, params=identity(params))
    signed = [slot.sides["signatures"] for slot in places]
    items = [Item((part.blob.sha256,), _Bands(part, params), part.rows) for part in signed]
    leaves = [made[0] for made in run_items(ctx, step, _bands, items, label=f"{ASSET} bands", unit="documents")]
    return tree(ctx, BANDS, 2, leaves)


def digests(ctx: Context, places: Sequence[Slot]) -> list[Branch]:
    """Return the digest of every document's normalized text, as sorted runs of (upper half, address, lower half)."""
    return tree(ctx, exact.DIGESTS, 3, exact.leaves(ctx, places))


@dataclass(frozen=True)
class _Bands:
    part: Part
    params: MinHash


def _bands(store: Store, task: _Bands) -> tuple[Part, ...]:
    params, first = task.params, 0
    width = params.bands * params.rows
    keys, rows = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for batch in iter_batches(store, task.part, ["signature"]):
        column = batch.column("signature")
        signed = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        values = raw_signatures(column, width)
        values = values if signed.size == len(column) else values[signed]
        keys.append(band_keys(np.ascontiguousarray(values), params.bands, params.rows).reshape(-1))
        rows.append(np.repeat((first + signed).astype(np.uint64), params.bands))
        first += batch.num_rows
    key, row = np.concatenate(keys), np.concatenate(rows)
    order = sorted_runs.in_order(key, row)
    return (sorted_runs.write(store, "leaf.run", BANDS, [(key[order], row[order])], 2, identity(params)),)


def raw_signatures(column: Any, width: int) -> U32:
    """Return the signatures [rows, width] in a column. Rows without a signature contain undefined values."""
    raw = np.frombuffer(column.buffers()[1], dtype="<u4")[column.offset * width :]
    return raw[: len(column) * width].reshape(-1, width).astype(np.uint32, copy=False)


def params_of(made: Manifest) -> MinHash:
    """Return the parameters that an index was built with."""
    names = ("shingle_words", "shingle_characters", "max_characters", "seed", "bands", "rows")
    given = {name: made.params.get(name) for name in names}
    if given["shingle_words"] is None:
        del given["shingle_words"]
    return MinHash.model_validate(given)


# Documents near a text, from the index: for contamination, takedown and inspection.
#
# Exact duplicates are found by the digest of the folded text, near ones by band keys; a few blocks of each run are
# read, whatever the size of the corpus. Every candidate has the similarity its signature estimates, and the true
# one where its text is in the store. All documents are searched, those dropped or never considered too.

#: Minimum number of candidates whose signatures are read: those that share the most bands.
CANDIDATES = 100

#: A document of the index: (slot, row).
Address = tuple[int, int]


@dataclass(frozen=True)
class Match:
    """Indexed document that is similar to the query text.

    Args:
        bands: number of band keys that the document and the query text have in common.
        estimated: similarity estimated from signatures; None if the document has no signature (no words).
        similarity: true Jaccard similarity of the shingles; None if the document's text is not in the store.
    """

    bucket: str
    part: str
    row: int
    exact: bool
    bands: int
    estimated: float | None
    similarity: float | None
    id: str | None
    uri: str | None

    @property
    def best(self) -> float:
        """The true similarity if it is known, otherwise the estimate."""
        known = (1.0 if self.exact else self.similarity, self.estimated, 0.0)
        return next(value for value in known if value is not None)


class NearIndex:
    """Open near-duplicate index. Use it as a context manager.

    Args:
        ctx: workspace that contains the index.
        params: parameters of the signatures; they must equal the parameters that the index was built with.
        made: manifest of `dedup/index`.
        documents: `{b}/documents` by bucket, needed for true similarities, ids and URIs.

    Raises:
        MissingError, IntegrityError: a run is missing or damaged, or has a different version or parameters.
    """

    def __init__(
        self, ctx: Context, params: MinHash, made: Manifest, documents: Mapping[str, Manifest] | None = None
    ) -> None:
        self.ctx, self.params = ctx, params
        wanted = identity(params)
        if made.version != VERSION or dict(made.params) != wanted:
            raise IntegrityError(
                f"{made.asset} was built by another version or with other parameters",
                found=f"version {made.version}, {_differing(made.params, wanted)}",
                expected=f"version {VERSION}, {_differing(wanted, made.params)}",
                remedy="use the recipe that built the index, or rebuild it: `plinth run --select dedup/index`",
            )
        self.layout = json.loads(ctx.store.read_bytes(made.named(LAYOUT)[0].blob))
        self._parts = {
            (bucket, part.blob.sha256): part for bucket, one in (documents or {}).items() for part in one.named("part-")
        }
        self._stack = ExitStack()
        try:
            self._runs = {
                kind: [
                    (self._stack.enter_context(sorted_runs.SortedRun(ctx.store, part, kind, identity)), slots)
                    for part, slots in zip(made.named(f"{kind}-"), self.layout["runs"][kind], strict=True)
                ]
                for kind, identity in ((BANDS, wanted), (exact.DIGESTS, {"version": exact.VERSION}))
            }
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> NearIndex:
        return self

    def __exit__(self, *args: object) -> None:
        self._stack.close()

    def near(self, text: str, threshold: float = 0.0, limit: int = 20) -> list[Match]:
        """Return the documents that are most similar to a text, in descending order. Exact duplicates come first.

        Args:
            threshold: minimum similarity of a match; the true similarity if it is known, otherwise the estimate.
            limit: maximum number of documents.
        """
        column = pa.array([text], pa.large_string())
        same = set(self._exact(column))
        a, b = permutations(self.params.bands * self.params.rows, self.params.seed)
        signed, filled = linking.signatures(column, self.params, a, b)
        shared = self._bands(signed) if filled[0] else {}
        counts = {**dict.fromkeys(same, 0), **shared}
        ranked = sorted(counts, key=lambda at: (at not in same, -counts[at], at))[: max(limit, CANDIDATES)]
        estimates = self._estimates(ranked, signed[0]) if filled[0] else {}
        ranked.sort(key=lambda at: (at not in same, -(estimates.get(at) or 0.0), at))
        found = self._matches(ranked[:limit], same, counts, estimates, linking.sets(column, self.params)[0])
        found.sort(key=lambda match: (not match.exact, -match.best, match.id or "", match.bucket, match.part))
        return [match for match in found if match.best >= threshold]

    def _exact(self, column: pa.Array) -> Iterator[Address]:
        high, low = (np.frombuffer(unicode.digests(column).buffers()[1], dtype=">u8")[i] for i in (0, 1))
        for opened, parts in self._runs[exact.DIGESTS]:
            _, at, other = opened.slice(int(high), int(high) + 1)
            yield from _addresses(at[other == np.uint64(low)], parts)

    def _bands(self, signed: U32) -> dict[Address, int]:
        """Return, for each indexed document, the number of band keys that it has in common with a signature [1, K]."""
        counts: dict[Address, int] = {}
        for key in band_keys(signed, self.params.bands, self.params.rows)[0].tolist():
            for opened, parts in self._runs[BANDS]:
                for address in _addresses(opened.slice(key, key + 1)[1], parts):
                    counts[address] = counts.get(address, 0) + 1
        return counts

    def _estimates(self, places: Sequence[Address], signed: U32) -> dict[Address, float]:
        """Return, for each document, the share of minima in its signature that equal the minima in `signed` [K]."""
        parts = {slot: Part.model_validate(self.layout["documents"][slot]["signatures"]) for slot, _ in places}
        found = {}
        for at, row in _rows(self.ctx, parts, places, ["signature"]):
            if row["signature"] is not None:
                found[at] = float(np.mean(np.frombuffer(row["signature"], dtype="<u4") == signed))
        return found

    def _matches(
        self,
        places: Sequence[Address],
        same: set[Address],
        counts: Mapping[Address, int],
        estimates: Mapping[Address, float],
        wanted: U64,
    ) -> list[Match]:
        stored = {}
        for slot in {slot for slot, _ in places}:
            described = self.layout["documents"][slot]
            part = self._parts.get((described["bucket"], described["sha256"]))
            if part is not None and self.ctx.store.has(part.blob):
                stored[slot] = part
        read = dict(_rows(self.ctx, stored, [at for at in places if at[0] in stored], ["id", "uri", "text"]))
        texts = pa.array([row["text"] for row in read.values()], pa.large_string())
        truth = {
            at: jaccard(wanted, theirs)
            for at, theirs in zip(read, linking.sets(texts, self.params) if read else [], strict=True)
        }
        found = []
        for at in places:
            slot, row = self.layout["documents"][at[0]], read.get(at)
            names = (row["id"].hex(), row["uri"]) if row else (None, None)
            place = (slot["bucket"], slot["part"], at[1])
            found.append(Match(*place, at in same, counts[at], estimates.get(at), truth.get(at), *names))
        return found


def _rows(
    ctx: Context, parts: Mapping[int, Part], places: Sequence[Address], columns: Sequence[str]
) -> Iterator[tuple[Address, dict[str, Any]]]:
    """Yield rows from several parts, each with its address in `places`. Each row group is read once."""
    for slot, part in parts.items():
        rows = np.array(sorted(row for one, row in places if one == slot), dtype=np.int64)
        batches = sorted_runs.iter_rows(ctx.store, part, columns, rows)
        values = (value for batch in batches for value in batch.to_pylist())
        yield from zip(((slot, int(row)) for row in rows), values, strict=True)


def _addresses(local: U64, slots: Sequence[int]) -> Iterator[Address]:
    for value in local.tolist():
        yield slots[value >> 32], value & 0xFFFFFFFF


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {one[name]}" for name in sorted(one) if other.get(name) != one[name]) or "the same"


def open_published(ctx: Context, params: MinHash | None = None) -> NearIndex:
    """Open the published index of a workspace, with the published documents.

    Args:
        params: parameters of the signatures; by default, the parameters that the index was built with.

    Raises:
        MissingError: the index does not exist, or a run is missing.
        IntegrityError: a run is damaged, or the index has a different version or parameters.
    """
    made = ctx.refs.current(ASSET)
    buckets = [key.removesuffix("/documents") for key in made.inputs if key.endswith("/documents")]
    documents = {bucket: ctx.refs.load(made.inputs[f"{bucket}/documents"]) for bucket in buckets}
    return NearIndex(ctx, params or params_of(made), made, documents)


def fate(ctx: Context, match: Match) -> dict[str, Any]:
    """Return the pipeline's decision about a document, its reason, the document's cluster, and whether it survived
    exact and near deduplication.

    Keys are `decision`, `reason`, `cluster`, `cluster_size`, `exact_survivor` and `near_survivor`. A key is present if
    the stage that decides it is published and derives from the same documents.
    """
    known: dict[str, Any] = {}
    sides = {
        f"{match.bucket}/verdicts": (match.part, ("decision", "reason", "cluster", "cluster_size")),
        exact.ASSET: (f"{match.bucket}/{match.part}", ("survivor",)),
        "dedup/minhash": (f"{match.bucket}/{match.part}", ("survivor",)),
    }
    documents = ctx.refs.current(ASSET).inputs.get(f"{match.bucket}/documents")
    for asset, (name, columns) in sides.items():
        side = ctx.refs.published(asset)
        part = next((one for one in side.parts if one.name == name), None) if side else None
        if side is None or part is None or side.inputs.get(f"{match.bucket}/documents") != documents:
            continue
        row = read_row(ctx.store, part, match.row, columns)
        prefix = {exact.ASSET: "exact_", "dedup/minhash": "near_"}.get(asset, "")
        known |= {prefix + key: value.hex() if isinstance(value, bytes) else value for key, value in row.items()}
    return known
