"""What the latest checkpoint wrote when text of risk was tried on it, traced to documents.

Of `memorisation/extraction` every completion that was exact or near is traced with its prefix; the others are traced
too, alone: a model may leave a document for another that it knows better.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth_audit.extraction import extraction
from plinth_audit.trace.anchors import SPAN_TOKENS
from plinth_audit.trace.tracer import LISTED, Tracer


def latest(ctx: Context, *, least: int = SPAN_TOKENS, listed: int = LISTED) -> dict[str, Any]:
    """Completions in which verbatim spans were found.

    Returns:
        `checkpoint` (digest), `run`, `step`, `completions` (how many were traced) and `found`: `id`, `bucket`,
        `heldout`, `outcome`, `completion` (text), `trace` (as `Tracer.tokens`), by outcome.

    Raises:
        MissingError: no completions are published, or no trace index.
    """
    made = _published(ctx)
    checkpoint = ctx.refs.load(made.inputs["checkpoint"])
    tracer, rows = Tracer(ctx), list(_documents(ctx, made))
    found = []
    for row in rows:
        given = row["prefix"] if row["outcome"] != extraction.OTHER else []
        traced = tracer.tokens(np.array([*given, *row["completion"]], np.int64), least=least, listed=listed)
        if traced["spans"]:
            named = {name: row[name] for name in ("id", "bucket", "heldout", "outcome")}
            found.append({**named, "completion": row["completion_text"], "trace": traced})
    return {
        "checkpoint": checkpoint.digest,
        "run": checkpoint.stats.get("run_id"),
        "step": checkpoint.stats.get("step"),
        "completions": len(rows),
        "found": found,
    }


def _published(ctx: Context) -> Manifest:
    found = ctx.refs.published(extraction.ASSET)
    if found is None:
        raise MissingError(
            "no completions of a checkpoint are published",
            expected=f"the asset {extraction.ASSET}",
            remedy="add `evaluation: {extraction: {}}` to the recipe and run it, or trace a text of your own",
        )
    return found


def _documents(ctx: Context, made: Manifest) -> Iterator[Mapping[str, Any]]:
    """Every document once, though several slices may have it: exact ones first, held-out ones last."""
    (part,) = made.named(extraction.TABLE)
    rows = {(row["bucket"], row["id"]): row for row in read_table(ctx.store, part).to_pylist()}
    order = {name: place for place, name in enumerate(extraction.OUTCOMES)}
    yield from sorted(rows.values(), key=lambda row: (row["heldout"], order[row["outcome"]], row["bucket"], row["id"]))
