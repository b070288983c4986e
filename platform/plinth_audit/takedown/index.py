"""Sorted keys of ledgers, to find the rows for an ID, an address, a domain, a license or a cluster without a scan.

There is one memory-mapped Arrow file per ledger part:

    key   uint64, ascending: BLAKE2b of (kind, value), 8 bytes, little-endian
    row   uint32, row in the ledger part

Readers compare the values in a row with the query, because keys can collide. All ledgers are indexed, including old
ledgers, because a document that a run read may have been removed later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context, Item, manifest, run_items
from plinth.corpus import exclusions
from plinth.errors import IntegrityError, MissingError
from plinth.provenance.ledger import ASSET as LEDGER
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_batches, write_arrow
from plinth.storage.store import Store
from plinth_assets.framework import Inputs, Stage, Stages, Suite, equal_columns, rows_between, shared_owner

ASSET = "takedown/index"
VERSION = "2"
CLUSTER = "cluster"
KEYS = pa.schema([pa.field("key", pa.uint64(), nullable=False), pa.field("row", pa.uint32(), nullable=False)])
_COLUMNS = ["id", "uri", "licence", "cluster", "cluster_size"]
_SAVED_LEDGER = f'"asset":"{LEDGER}"'.encode()

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class IndexedPart:
    """Part of a ledger, with its index keys. `ledgers` are the ledgers that contain the part, the published ledger
    first."""

    part: Part
    keys: Part
    ledgers: tuple[str, ...]
    published: bool


def key_of(kind: str, value: str) -> int:
    """Return the index key of a normalized value: a 64-bit hash of kind and value."""
    return int.from_bytes(hashlib.blake2b(f"{kind}\0{value}".encode(), digest_size=8).digest(), "little")


def run(ctx: Context, ledger: Manifest) -> Manifest:
    """Build the key index of a ledger, part by part. Stats: `documents`, `keys`."""
    parts = _documents(ledger)
    made = [one.model_copy(update={"name": part.name}) for part, one in zip(parts, _index(ctx, parts), strict=True)]
    stats = {"documents": sum(part.rows for part in parts), "keys": sum(one.rows for one in made)}
    return manifest(ASSET, _step(), {LEDGER: ledger}, made, stats)


def every_part(ctx: Context) -> list[IndexedPart]:
    """Return the available parts of all ledgers, each part once. If a part has no index, it is indexed now.

    Raises:
        MissingError: there is no ledger.
    """
    ref = ctx.refs.ref(LEDGER)
    current = ref.digest if ref else ""
    known: dict[str, tuple[Part, list[str]]] = {}
    for digest in sorted(saved(ctx), key=lambda digest: (digest != current, digest)):
        for part in _documents(ctx.refs.load(digest)):
            known.setdefault(part.blob.sha256, (part, []))[1].append(digest)
    if not known:
        raise MissingError(
            "this workspace has no ledger",
            expected="a ledger with one row per document",
            remedy="run `plinth run --select ledger`",
        )
    here = [(part, ledgers) for part, ledgers in known.values() if ctx.store.has(part.blob)]
    keys = _index(ctx, [part for part, _ in here])
    pairs = zip(here, keys, strict=True)
    return [IndexedPart(part, own, tuple(ledgers), ledgers[0] == current) for (part, ledgers), own in pairs]


def rows_of(store: Store, keys: Part, wanted: Iterable[int]) -> Rows:
    """Return the numbers of the ledger rows that have one of the wanted keys, in ascending order.

    Raises:
        IntegrityError: the file is not an index.
    """
    path = store.open_path(keys.blob)
    try:
        with pa.ipc.open_file(pa.memory_map(str(path))) as file:
            table = file.read_all()
        column, rows = (table.column(name) for name in KEYS.names)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise IntegrityError(
            f"{path} is not a ledger index", found=error, remedy="delete the file and run the same command again"
        ) from error
    if not table.num_rows:
        return np.empty(0, np.int64)
    values = column.chunk(0).to_numpy()
    asked = np.array(sorted(set(wanted)), np.uint64)
    edges = zip(np.searchsorted(values, asked), np.searchsorted(values, asked, side="right"), strict=True)
    pieces = [rows.chunk(0)[int(low) : int(high)].to_numpy() for low, high in edges]
    return np.unique(np.concatenate([np.empty(0, np.int64), *pieces]).astype(np.int64))


def saved(ctx: Context) -> Iterator[str]:
    """Yield the digests of all ledger manifests in the workspace."""
    for path in ctx.refs.saved():
        data = path.read_bytes()
        if _SAVED_LEDGER in data and json.loads(data).get("asset") == LEDGER:
            yield path.stem


def _documents(ledger: Manifest) -> list[Part]:
    return [part for part in ledger.parts if "/part-" in part.name]


def _step() -> Step:
    return Step(name=ASSET, version=VERSION, libraries=fingerprint.UNICODE)


def _index(ctx: Context, parts: Sequence[Part]) -> list[Part]:
    items = [Item((part.blob.sha256,), part, part.rows) for part in parts]
    return [made[0] for made in run_items(ctx, _step(), _keys, items, label=ASSET)]


def _keys(store: Store, part: Part) -> tuple[Part, ...]:
    found, rows, first = [np.empty(0, np.uint64)], [np.empty(0, np.uint32)], 0
    for batch in iter_batches(store, part, _COLUMNS):
        pairs = [(key, first + row) for row, key in _of_batch(batch)]
        found.append(np.array([key for key, _ in pairs], np.uint64))
        rows.append(np.array([row for _, row in pairs], np.uint32))
        first += batch.num_rows
    keys, at = np.concatenate(found), np.concatenate(rows)
    order = np.lexsort((at, keys))
    return (write_arrow(store, "keys.arrow", pa.table([keys[order], at[order]], schema=KEYS)),)


def _of_batch(batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    columns = zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True)
    for row, (id_, uri, licence, cluster, size) in enumerate(columns):
        yield row, key_of("document", id_)
        yield row, key_of("url", exclusions.address(uri))
        for name in exclusions.domains_of(uri):
            yield row, key_of("domain", name)
        for name in sorted(exclusions.licences_of(licence)):
            yield row, key_of("licence", name)
        if cluster is not None and size > 1:
            yield row, key_of(CLUSTER, cluster)


def stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that indexes the ledger."""
    return [
        Stage(
            asset=ASSET,
            deps=(LEDGER,),
            make=lambda ctx, inputs, _: run(ctx, inputs[LEDGER]),
            version=VERSION,
            params={},
            libraries=fingerprint.UNICODE,
            group="report",
            description="Index of documents by address, domain, license and ID (`plinth corpus takedown find`).",
            owner=shared_owner(recipe),
            kinds=("arrow",),
            schema=KEYS,
            suite=_suite,
        )
    ]


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    """Return the checks of the asset, which require that every document in the ledger has keys."""
    planted = int(inputs[LEDGER].stats.get("planted", 0))
    row = {"documents": made.stats["documents"], "ledger": inputs[LEDGER].stats["documents"] + planted}
    return Suite("takedown-index", [row], [rows_between(1), equal_columns("documents", "ledger")])


STAGES = Stages(name="takedown", stages=stages)
