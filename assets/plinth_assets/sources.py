"""`{bucket}/sources`: the source files of a bucket, by content."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context, manifest
from plinth.corpus.sources.files import KIND, STAGE
from plinth.corpus.sources.inventory import Inventory, inventory, not_read, remembered, wanted_suffixes
from plinth.corpus.sources.parameters import Bucket, Source
from plinth.operation import workspace_files
from plinth.operation.workspace_files import ARRIVED
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest, Step
from plinth.storage import listing
from plinth.text import markdown_text
from plinth.training import sampled_text
from plinth_assets.framework.expectations import Suite, between, no_nulls, rows_between
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage
from plinth_assets.sampled import written

VERSION = "3"
#: A damaged source is found before anything is made of the others.
READ_FIRST = 1


def stages(recipe: Recipe) -> list[Stage]:
    """One inventory per bucket."""
    return [
        Stage(
            asset=f"{name}/sources",
            deps=written(name, bucket),
            make=partial(_make, name, bucket),
            outside=None if written(name, bucket) else partial(_outside, bucket),
            version=VERSION,
            params=[source.model_dump(mode="json") for source in bucket.sources],
            group="sources",
            description=f"Source files of {name}: {markdown_text(bucket.description)}",
            owner=bucket.owner,
            kinds=("file",),
            suite=_suite,
            present=_present,
            priority=READ_FIRST,
        )
        for name, bucket in recipe.corpus.buckets.items()
    ]


def _outside(bucket: Bucket, ctx: Context) -> str:
    found = listed(bucket, ctx, {})
    return fingerprint.digest([found.digest, found.unread]) if found.unread else found.digest


def listed(bucket: Bucket, ctx: Context, inputs: Inputs) -> Inventory:
    """The files of a bucket: those that its sources name, or that a model wrote."""
    for key, made in inputs.items():
        if key.endswith(f"/{STAGE}"):
            return sampled_text.inventory(ctx.store, made)
    return inventory(bucket, ctx.workspace.input, remembered(ctx.workspace), engine=ctx.engine)


def _make(name: str, bucket: Bucket, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    found = listed(bucket, ctx, inputs)
    files = [
        {
            "source": index,
            "name": file.name,
            "bytes": file.bytes,
            "sha256": file.sha256,
            "pieces": max(1, len(file.pieces)),
        }
        for index, file in found.files
    ]
    step = Step(name="sources", version=VERSION, params={"sources": [_facts(source) for source in bucket.sources]})
    stats: dict[str, Any] = {"files": len(files), "source_bytes": found.bytes, "inventory": found.digest}
    stats |= {"found": found.found, "not_read": not_read(bucket, found)}
    stats |= {"revisions": found.revisions} if found.revisions else {}
    part = ctx.store_json(f"{name}-files.json", files)
    note_arrival(ctx, name, bucket)
    return manifest(f"{name}/sources", step, {"inventory": found.digest, **inputs}, [part], stats)


def note_arrival(ctx: Context, name: str, bucket: Bucket) -> None:
    """Log when the newest file of a bucket came, where its sources say so: from then on its documents are awaited."""
    outside = [source for source in bucket.sources if source.kind != KIND]
    times = [listing.newest(one.path, ctx.workspace.input, wanted_suffixes(one), one.hidden) for one in outside]
    if known := [time for time in times if time is not None]:
        workspace_files.append(ctx, ARRIVED, name, at=max(known))


def _facts(source: Source) -> dict[str, Any]:
    """The declared facts of a source, without its location."""
    return source.model_dump(mode="json", exclude={"path"})


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    rows = sorted(made.stats["not_read"].items(), key=lambda one: (-one[1], one[0]))
    return {"files_found": made.stats["found"], "not_read": markdown(table(["reason", "files"], rows))}


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    rows = [{"files": made.stats["files"], "source_bytes": made.stats["source_bytes"]}]
    expectations = [rows_between(1), no_nulls("files"), between("files", 1, None), between("source_bytes", 1, None)]
    return Suite(f"sources-{made.asset.split('/')[0]}", rows, expectations)
