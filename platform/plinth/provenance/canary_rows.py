"""Canaries, which are in no bucket's documents: planted copies, and those that the coin left out.

A copy's URI is `canary://NUMBER/COPY` (`corpus.canaries.plant`). Of a canary that its coin left out there is no copy
and no row of curated text; of one that is planted, copies are counted from 0.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.corpus.canaries import plant
from plinth.errors import MissingError
from plinth.provenance.document_rows import DOCUMENT_ID, DocumentPlace, matching_rows
from plinth.records import bucket_of

URI = re.compile(r"canary://(\d{1,9})/(\d{1,9})", re.ASCII)


def planted(ctx: Context, target: str) -> DocumentPlace | None:
    """The place of a planted copy, by id or URI."""
    manifest = ctx.refs.published(plant.ASSET)
    if manifest is None:
        return None
    by_id = DOCUMENT_ID.fullmatch(target) is not None
    wanted: Any = pa.scalar(bytes.fromhex(target), pa.binary(16)) if by_id else pa.scalar(target)
    places = (
        DocumentPlace(bucket_of(plant.ASSET), manifest, number, row)
        for number, part in enumerate(manifest.named("part-"))
        for row in matching_rows(ctx, part, "id" if by_id else "uri", wanted)
    )
    return next(places, None)


def left_out(ctx: Context, target: str) -> dict[str, Any] | None:
    """The row (`plant.SCHEMA`) of a canary that its coin left out, by the URI that a copy would have; None for what is
    no URI of a canary, and where no canaries are published.

    Raises:
        MissingError: there is no such canary, or no such copy of one that is planted; names those there are.
    """
    named, manifest = URI.fullmatch(target), ctx.refs.published(plant.ASSET)
    if named is None or manifest is None:
        return None
    number = int(named[1])
    table = plant.table(ctx.store, manifest)
    canaries = table.filter(pc.equal(table["kind"], "canary"))
    own = canaries.filter(pc.equal(canaries["number"], number)).to_pylist()
    if own and not own[0]["planted"]:
        return dict(own[0])
    have = f"copies 0 to {own[0]['repetitions'] - 1} of canary {number}" if own else f"{canaries.num_rows} canaries"
    raise MissingError(
        f"no planted copy {target}",
        found=have,
        expected="canary://NUMBER/COPY, both counted from 0",
        remedy="name one of them",
    )
