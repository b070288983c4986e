"""The whole story of one document as a nested dict: from its source to the checkpoints that saw it.

Only what is published now is read. A section is there when its asset is; one that was made from other
documents than those published is listed under `stale` instead of being believed.
"""

from __future__ import annotations

import json
from typing import Any

from plinth.context import Context
from plinth.provenance import evidence, seen
from plinth.provenance.evidence import Place
from plinth.records import Manifest
from plinth.storage.parts import read_row

PREVIEW_CHARACTERS = 240

#: Assets of a bucket that are no scores: they have sections of their own, or no readable row per document.
NO_SCORES = frozenset({"documents", "sources", "minhash", "policy", "verdicts", "curated", "shards"})
OVER_ALL_BUCKETS = {
    "exact": "dedup/exact",
    "near": "dedup/minhash",
    "holdout": "holdout",
    "contamination": "contamination",
}


def document(ctx: Context, target: str) -> dict[str, Any]:
    """Everything known about a document, by id (32 hexadecimal digits) or URI.

    Keys: `id`, `uri`, `bucket`, `status` (`train`, `heldout`, `drop`, `reject` or `undecided`), `reason`,
    `document`, `scores` (annotator -> column -> value), `policy`, `dedup` (`exact` and `near`, with
    members), `holdout`, `contamination`, `verdict`, `curated`, `tokens`, `training` (run -> steps and
    checkpoints), `stale`, `also` (other places of the same URI).

    Raises:
        MissingError: no document and no reject has this id or URI; names the nearest URIs.
    """
    place, *others = evidence.locate(ctx, target)
    story = _reject(ctx, place) if place.rejected else _document(ctx, place)
    if others:
        story["also"] = [_name(ctx, other) for other in others]
    return story


def _reject(ctx: Context, place: Place) -> dict[str, Any]:
    row = evidence.plain(read_row(ctx.store, place.source, place.row))
    return {
        "uri": row["uri"],
        "bucket": place.bucket,
        "status": "reject",
        "reason": row["reason"],
        "reject": row | {"part": place.source.name, "row": place.row},
    }


def _document(ctx: Context, place: Place) -> dict[str, Any]:
    row = read_row(ctx.store, place.source, place.row)
    text = row.pop("text")
    facts = evidence.plain(row)
    facts |= {"extra": json.loads(row["extra"]), "characters": len(text), "preview": text[:PREVIEW_CHARACTERS]}
    story: dict[str, Any] = {"id": facts.pop("id"), "uri": facts.pop("uri"), "bucket": place.bucket}
    story |= {"status": "undecided", "reason": None}
    story["document"] = facts | {"part": place.source.name, "row": place.row}
    stale: list[str] = []
    story["scores"] = _scores(ctx, place, stale)
    _judgements(ctx, place, story, stale)
    _after(ctx, story)
    return story | ({"stale": sorted(stale)} if stale else {})


def _scores(ctx: Context, place: Place, stale: list[str]) -> dict[str, Any]:
    """Every annotator's row, by the annotator's name."""
    scores: dict[str, Any] = {}
    for ref in ctx.refs.all():
        bucket, _, kind = ref.asset.partition("/")
        if bucket != place.bucket or not kind or kind in NO_SCORES:
            continue
        row = evidence.sidecar(ctx, place, ctx.refs.load(ref.digest))
        if row is None:
            stale.append(ref.asset)
        else:
            scores[kind] = row
    return scores


def _judgements(ctx: Context, place: Place, story: dict[str, Any], stale: list[str]) -> None:
    """Policy, duplicates, holdout, contamination and the verdict that follows from them."""
    for key in ("policy", "verdicts"):
        row = _row(ctx, place, f"{place.bucket}/{key}", "part-", stale)
        if row is not None:
            story["verdict" if key == "verdicts" else key] = row
    story["dedup"] = {}
    for key, asset in OVER_ALL_BUCKETS.items():
        row = _row(ctx, place, asset, f"{place.bucket}/part-", stale)
        if row is None:
            continue
        if row.get("cluster"):
            clusters = ctx.refs.current(asset)
            row["members"] = evidence.members(ctx, clusters, row["cluster"]) if row.get("size", 1) > 1 else []
        (story["dedup"] if key in ("exact", "near") else story)[key] = row
    if "verdict" in story:
        story["status"], story["reason"] = story["verdict"]["decision"], story["verdict"]["reason"]


def _after(ctx: Context, story: dict[str, Any]) -> None:
    """Curated text, tokens, training."""
    bucket, id_ = story["bucket"], story["id"]
    for key, find in (("curated", evidence.curated), ("shards", seen.tokens)):
        manifest = _current(ctx, f"{bucket}/{key}")
        found = find(ctx, manifest, id_) if manifest else None
        if found:
            story["tokens" if key == "shards" else key] = found
    story["training"] = seen.runs(ctx, bucket, id_)


def _row(ctx: Context, place: Place, asset: str, stem: str, stale: list[str]) -> dict[str, Any] | None:
    manifest = _current(ctx, asset)
    if manifest is None:
        return None
    row = evidence.sidecar(ctx, place, manifest, stem)
    if row is None:
        stale.append(asset)
    return row


def _current(ctx: Context, asset: str) -> Manifest | None:
    ref = ctx.refs.ref(asset)
    return ctx.refs.load(ref.digest) if ref else None


def _name(ctx: Context, place: Place) -> dict[str, Any]:
    columns = ["uri", "reason"] if place.rejected else ["id", "uri"]
    row = evidence.plain(read_row(ctx.store, place.source, place.row, columns))
    return {"bucket": place.bucket, **row, "rejected": place.rejected}
