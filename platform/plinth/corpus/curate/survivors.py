"""Survivors of clusters, for people who look at samples of removed duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.corpus.curate.verdicts import ASSETS
from plinth.storage.parts import iter_batches, read_row

#: Stages that remove all of a cluster but one.
CLUSTERING = ("exact", "near", "semantic")


def cluster_of(ctx: Context, stage: str, bucket: str, part: int, row: int) -> str | None:
    """The cluster of a document in a stage's sidecar, in hexadecimal."""
    sides = ctx.refs.current(ASSETS[stage]).named(f"{bucket}/part-")
    found = read_row(ctx.store, sides[part], row, ["cluster"])["cluster"] if part < len(sides) else None
    return found.hex() if found else None


def survivors(ctx: Context, stage: str, clusters: Iterable[str | None]) -> Mapping[str, Mapping[str, str]]:
    """Bucket, id and URI of the survivor of each cluster; reads the stage's sidecars once, and no text."""
    wanted = sorted({bytes.fromhex(one) for one in clusters if one})
    if not wanted:
        return {}
    found, asked = {}, pa.array(wanted, pa.binary(16))
    sides = ctx.refs.current(ASSETS[stage])
    for bucket in sorted({part.name.partition("/")[0] for part in sides.parts if "/part-" in part.name}):
        documents = ctx.refs.current(f"{bucket}/documents").named("part-")
        for side, part in zip(sides.named(f"{bucket}/part-"), documents, strict=False):
            first = 0
            for batch in iter_batches(ctx.store, side, ["cluster", "survivor"]) if side.rows == part.rows else ():
                hit = pc.and_(pc.is_in(batch.column("cluster"), value_set=asked), batch.column("survivor"))
                for at in pc.indices_nonzero(hit).to_pylist():
                    name = read_row(ctx.store, part, first + at, ["id", "uri"])
                    cluster = batch.column("cluster")[at].as_py().hex()
                    found[cluster] = {"bucket": bucket, "id": name["id"].hex(), "uri": name["uri"]}
                first += batch.num_rows
    return found
