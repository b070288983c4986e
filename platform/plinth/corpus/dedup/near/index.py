"""Sorted band keys and text digests of every document, kept as runs that only ever merge.

    bands      per part, once and for all: the band keys of its signatures with their rows, sorted
    digests    per part, once and for all: the digests of its folded texts, sorted (`exact`)
    tree       runs of several parts, merged where there are many (`tree`)

A new snapshot adds leaves and merges a few branches; neither old texts nor old signatures are read for it. The
index holds all documents, dropped ones too; a reader applies a mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plinth.compute.context import Context
from plinth.compute.stage import Item, manifest, run_items
from plinth.corpus.dedup import exact, sorted_runs
from plinth.corpus.dedup.parameters import MinHash
from plinth.corpus.dedup.run_tree import Branch, tree
from plinth.corpus.sidecars import Slot, slots
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_batches
from plinth.storage.store import Store
from plinth_text.similarity.signatures import band_keys

U64 = sorted_runs.U64

ASSET = "dedup/index"
VERSION = "1"
BANDS = "bands"
LAYOUT = "layout.json"


def run(
    ctx: Context, params: MinHash, documents: Mapping[str, Manifest], signatures: Mapping[str, Manifest]
) -> Manifest:
    """The index of all documents.

    Args:
        documents: `{b}/documents` by bucket.
        signatures: `{b}/minhash` by bucket, of the same parameters.

    Returns:
        Manifest of `bands-*`, `digests-*` and `layout.json`, which lists their documents.

    Raises:
        IntegrityError: signatures do not belong to the documents; a part is damaged.
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
    """The parameters that band keys depend on; an index of another identity is never read."""
    return {"version": VERSION, **params.signature(), "bands": params.bands, "rows": params.rows}


def bands(ctx: Context, params: MinHash, places: Sequence[Slot]) -> list[Branch]:
    """The band keys of every document that has words, as runs of (key, address)."""
    step = Step(name="dedup/index/bands", version=VERSION, params=identity(params))
    signed = [slot.sides["signatures"] for slot in places]
    items = [Item((part.blob.sha256,), _Bands(part, params), part.rows) for part in signed]
    leaves = [made[0] for made in run_items(ctx, step, _bands, items, label=f"{ASSET} bands")]
    return tree(ctx, BANDS, 2, leaves)


def digests(ctx: Context, places: Sequence[Slot]) -> list[Branch]:
    """The digest of every document's folded text, as runs of (upper half, address, lower half)."""
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
        values = raw_signatures(column, width)[signed]
        keys.append(band_keys(np.ascontiguousarray(values), params.bands, params.rows).reshape(-1))
        rows.append(np.repeat((first + signed).astype(np.uint64), params.bands))
        first += batch.num_rows
    key, row = np.concatenate(keys), np.concatenate(rows)
    order = sorted_runs.in_order(key, row)
    return (sorted_runs.write(store, "leaf.run", BANDS, [(key[order], row[order])], 2, identity(params)),)


def raw_signatures(column: Any, width: int) -> npt.NDArray[np.uint32]:
    """The signatures [rows, width] of a column; rows without one hold anything."""
    raw = np.frombuffer(column.buffers()[1], dtype="<u4")[column.offset * width :]
    return raw[: len(column) * width].reshape(-1, width).astype(np.uint32, copy=False)


def params_of(made: Manifest) -> MinHash:
    """The parameters that an index was made with."""
    names = ("shingle_words", "shingle_characters", "max_characters", "seed", "bands", "rows")
    given = {name: made.params.get(name) for name in names}
    if given["shingle_words"] is None:
        del given["shingle_words"]
    return MinHash.model_validate(given)
