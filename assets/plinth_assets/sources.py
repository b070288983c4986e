"""The assets `{bucket}/sources`, `lists/{name}`, `models/main_content` and `{bucket}/documents`: inventories of source
files with their digests, the user's lists, the learned model of the extraction, and extracted, normalized documents.
Excluded and damaged records are counted as rejects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context, manifest
from plinth.corpus import exclusions, lists
from plinth.corpus.documents import documents, extraction_model
from plinth.corpus.illegal_gate import gate_of
from plinth.corpus.sources.files import STAGE, WRITTEN_KINDS
from plinth.corpus.sources.inventory import Inventory, inventory, not_read, remembered, wanted_suffixes
from plinth.corpus.sources.parameters import Bucket, ExtractionModel, Source
from plinth.corpus.sources.record import EXCLUSIONS, identity
from plinth.errors import IntegrityError, SourceError
from plinth.operation import workspace_files
from plinth.operation.workspace_files import ARRIVED
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest, Step
from plinth.storage import listing
from plinth.storage.parts import DOCUMENT_SCHEMA
from plinth.text import markdown_text
from plinth.training import sampled_text
from plinth_assets.framework import (
    Inputs,
    Say,
    Stage,
    Suite,
    between,
    equal_columns,
    no_nulls,
    rows_between,
    shared_owner,
)
from plinth_assets.framework.present import markdown, present_statistics, table
from plinth_assets.initial import written

VERSION = "3"
#: Runs early, so that a damaged source is found first.
READ_FIRST = 1


def source_stages(recipe: Recipe) -> list[Stage]:
    """Return the stages that list the source files of each bucket."""
    return [
        Stage(
            asset=f"{name}/sources",
            deps=written(name, bucket),
            make=partial(_make_sources, name, bucket),
            outside=None if written(name, bucket) else partial(_outside_sources, bucket),
            version=VERSION,
            params=[source.model_dump(mode="json") for source in bucket.sources],
            group="sources",
            description=f"Source files of {name}: {markdown_text(bucket.description)}",
            owner=bucket.owner,
            kinds=("file",),
            suite=_suite_sources,
            present=_present_sources,
            priority=READ_FIRST,
        )
        for name, bucket in recipe.corpus.buckets.items()
    ]


def _outside_sources(bucket: Bucket, ctx: Context) -> str:
    found = listed(bucket, ctx, {})
    return fingerprint.digest([found.digest, found.unread]) if found.unread else found.digest


def listed(bucket: Bucket, ctx: Context, inputs: Inputs) -> Inventory:
    """Return the inventory of a bucket: the files that its sources name, or the files with text that was sampled from a
    model."""
    for key, made in inputs.items():
        if key.endswith(f"/{STAGE}"):
            return sampled_text.inventory(ctx.store, made)
    return inventory(bucket, ctx.workspace.input, remembered(ctx.workspace), engine=ctx.engine)


def _make_sources(name: str, bucket: Bucket, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
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
    """Log the arrival time of a bucket's newest file, if its sources state a time. The freshness of its documents is
    measured from this time."""
    outside = [source for source in bucket.sources if source.kind not in WRITTEN_KINDS]
    times = [listing.newest(one.path, ctx.workspace.input, wanted_suffixes(one), one.hidden) for one in outside]
    if known := [time for time in times if time is not None]:
        workspace_files.append(ctx, ARRIVED, name, at=max(known))


def _facts(source: Source) -> dict[str, Any]:
    """Return the recipe's declaration of a source, without the location of its files."""
    return source.model_dump(mode="json", exclude={"path"})


def _present_sources(ctx: Context, made: Manifest) -> dict[str, Any]:
    rows = sorted(made.stats["not_read"].items(), key=lambda one: (-one[1], one[0]))
    return {"files_found": made.stats["found"], "not_read": markdown(table(["reason", "files"], rows))}


def _suite_sources(made: Manifest, inputs: Inputs) -> Suite:
    rows = [{"files": made.stats["files"], "source_bytes": made.stats["source_bytes"]}]
    expectations = [rows_between(1), no_nulls("files"), between("files", 1, None), between("source_bytes", 1, None)]
    return Suite(f"sources-{made.asset.split('/')[0]}", rows, expectations)


def list_stages(recipe: Recipe) -> list[Stage]:
    """Return the stages that publish the recipe's lists, one stage per list."""
    return [
        Stage(
            asset=f"lists/{name}",
            deps=(),
            make=partial(_make_lists, name, location),
            outside=partial(lists.digest, location=location),
            version=lists.VERSION,
            params={},
            group="sources",
            description=f"Files of the list `{name}`, read from the input folder.",
            owner=shared_owner(recipe),
            kinds=("file",),
            suite=_suite_lists,
        )
        for name, location in recipe.corpus.lists.items()
    ]


def _make_lists(name: str, location: str, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return lists.run(ctx, name, location)


def _suite_lists(made: Manifest, inputs: Inputs) -> Suite:
    rows = [{"files": made.stats["files"], "bytes": made.stats["bytes"]}]
    return Suite(made.asset.replace("/", "-"), rows, [rows_between(1), between("bytes", 1, None)])


def extraction_stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that learns the model of the extraction, if the recipe has one."""
    params, learned = recipe.corpus.documents, recipe.corpus.documents.extraction_model
    if learned is None:
        return []
    return [
        Stage(
            asset=extraction_model.ASSET,
            deps=(*(f"{name}/sources" for name in learned.buckets), *_stops(recipe)),
            make=partial(_make_extraction, recipe, learned),
            version=extraction_model.VERSION,
            params=params.model_dump(mode="json") | _gate_facts(recipe),
            libraries=extraction_model.libraries(),
            group="models",
            description="Model of main content, learned from Trafilatura on articles of the sources.",
            owner=shared_owner(recipe),
            kinds=("model",),
            present=present_statistics,
        )
    ]


def _make_extraction(recipe: Recipe, learned: ExtractionModel, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    buckets = {name: recipe.corpus.buckets[name] for name in learned.buckets}
    found = {name: (bucket, _unchanged(name, bucket, ctx, inputs)) for name, bucket in buckets.items()}
    with _rereading(ctx):
        gate = gate_of(recipe.corpus.illegal, _lists(inputs))
        made = extraction_model.run(ctx, recipe.corpus.documents, learned, found, gate, inputs)
    say(f"{made.asset}: {extraction_model.in_words(made.stats)}")
    return made


def _stops(recipe: Recipe) -> tuple[str, ...]:
    """Return the asset keys of the lists of the illegal-content gate."""
    name = recipe.corpus.illegal.lists
    return () if name is None else (f"lists/{name}",)


def _gate_facts(recipe: Recipe) -> dict[str, Any]:
    return {"illegal": recipe.corpus.illegal.model_dump(mode="json")} if _stops(recipe) else {}


def document_stages(recipe: Recipe) -> list[Stage]:
    """Return the stages that read documents, one stage per bucket."""
    params = recipe.corpus.documents
    models = (extraction_model.ASSET,) if params.extraction_model else ()
    return [
        Stage(
            asset=f"{name}/documents",
            deps=(f"{name}/sources", *(written(name, bucket) or models), *_stops(recipe)),
            make=partial(_make_documents, name, bucket, recipe),
            outside=exclusions.digest,
            version=documents.VERSION,
            params=params.model_dump(mode="json") | _gate_facts(recipe) | _readers(bucket),
            libraries=documents.libraries(bucket, params),
            group="documents",
            description=f"Documents of the bucket {name}, one row per document, with source and license.",
            owner=bucket.owner,
            kinds=("parquet", params.extraction.engine.partition("+")[0] if _has_pages(bucket) else "python"),
            schema=DOCUMENT_SCHEMA,
            suite=partial(_suite_documents, params.max_reject_rate),
            present=_present_documents,
            priority=READ_FIRST,
        )
        for name, bucket in recipe.corpus.buckets.items()
    ]


def _has_pages(bucket: Bucket) -> bool:
    return any(source.kind in ("warc", "html") for source in bucket.sources)


def _readers(bucket: Bucket) -> dict[str, Any]:
    """Return the packages that provide the bucket's readers. The result is empty if all readers are built in."""
    found = {source.kind: identity(source.kind) for source in bucket.sources}
    installed = {kind: package for kind, package in sorted(found.items()) if package}
    return {"readers": installed} if installed else {}


def _unchanged(name: str, bucket: Bucket, ctx: Context, inputs: Inputs) -> Inventory:
    """Return the inventory of a bucket.

    Raises:
        SourceError: it is not the published inventory.
    """
    found = listed(bucket, ctx, inputs)
    published = inputs[f"{name}/sources"].stats["inventory"]
    if found.digest != published:
        raise SourceError(
            f"the sources of {name} changed during the run",
            found=f"inventory {found.digest[:16]}",
            expected=f"inventory {published[:16]}",
            remedy="rerun the same command",
        )
    return found


def _lists(inputs: Inputs) -> dict[str, Manifest]:
    return {key: made for key, made in inputs.items() if key.startswith("lists/")}


def _make_documents(name: str, bucket: Bucket, recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    found = _unchanged(name, bucket, ctx, inputs)
    with _rereading(ctx):
        lists, model = _lists(inputs), inputs.get(extraction_model.ASSET)
        gate, taken_down = gate_of(recipe.corpus.illegal, lists), exclusions.read(ctx)
        read = {**lists, **{key: inputs[key] for key in written(name, bucket)}}
        read |= {extraction_model.ASSET: model} if model else {}
        blob = model.parts[0].blob if model else None
        return documents.run(ctx, name, bucket, recipe.corpus.documents, found, gate, read, taken_down, blob)


@contextmanager
def _rereading(ctx: Context) -> Iterator[None]:
    """Let the next run read all files again if a cached digest is wrong."""
    try:
        yield
    except IntegrityError:
        remembered(ctx.workspace).forget()
        raise


def _suite_documents(max_reject_rate: float, made: Manifest, inputs: Inputs) -> Suite:
    rows = [
        {"rows": part.rows, "documents": part.stats.get("documents", part.rows), "bytes": part.blob.bytes}
        | {"reject_rate": made.stats["reject_rate"]}
        for part in made.named("part-")
    ]
    expectations = [
        rows_between(1),
        no_nulls("rows"),
        equal_columns("rows", "documents"),
        between("reject_rate", 0, max_reject_rate),
        between("rows", 1, None, "warning"),
    ]
    return Suite(f"documents-{made.asset.split('/')[0]}", rows, expectations)


def _present_documents(ctx: Context, made: Manifest) -> dict[str, Any]:
    rejects = sorted(made.stats.get("rejects", {}).items(), key=lambda one: (-one[1], one[0]))
    damaged, excluded = ([row for row in rejects if (row[0] in EXCLUSIONS) == kind] for kind in (False, True))
    shown = {} if "quarantine" not in made.stats else _quarantine(made.stats["quarantine"])
    return shown | {
        "dagster/row_count": made.stats["documents"],
        "text_bytes": made.stats["text_bytes"],
        "reject_rate": float(made.stats["reject_rate"]),
        "damage": markdown(table(["reason", "records"], damaged)),
        "exclusions": markdown(table(["reason", "records"], excluded)),
    }


def _quarantine(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of records that the illegal-content gate stopped, by list and by kind of match. `plinth corpus
    quarantine` lists these records."""
    rows = [["list", name, count] for name, count in counts["lists"].items()]
    rows += [["kind", name, count] for name, count in counts["kinds"].items()]
    return {
        "quarantined": counts["records"],
        "quarantine": markdown(table(["by", "name", "records"], rows)),
    }
