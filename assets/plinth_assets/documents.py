"""`{bucket}/documents`: sources read, extracted and normalised; exclusions and damage are counted rejects."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.corpus import exclusions
from plinth.corpus.documents import documents
from plinth.corpus.illegal_gate import gate_of
from plinth.corpus.sources.inventory import remembered
from plinth.corpus.sources.parameters import Bucket
from plinth.corpus.sources.record import EXCLUSIONS, identity
from plinth.errors import IntegrityError, SourceError
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.schemas import DOCUMENT_SCHEMA
from plinth_assets.framework.expectations import Suite, between, equal_columns, no_nulls, rows_between
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage
from plinth_assets.sampled import written
from plinth_assets.sources import READ_FIRST, listed


def stages(recipe: Recipe) -> list[Stage]:
    """One document set per bucket."""
    params, gate = recipe.corpus.documents, recipe.corpus.illegal
    stops = (f"lists/{gate.lists}",) if gate.lists is not None else ()
    return [
        Stage(
            asset=f"{name}/documents",
            deps=(f"{name}/sources", *written(name, bucket), *stops),
            make=partial(_make, name, bucket, recipe),
            outside=exclusions.digest,
            version=documents.VERSION,
            params=params.model_dump(mode="json")
            | ({"illegal": gate.model_dump(mode="json")} if stops else {})
            | _readers(bucket),
            libraries=documents.libraries(bucket, params),
            group="documents",
            description=f"Documents of {name}, one row each, with where they came from and under which licence.",
            owner=bucket.owner,
            kinds=("parquet", params.extraction.engine if _has_pages(bucket) else "python"),
            schema=DOCUMENT_SCHEMA,
            suite=partial(_suite, params.max_reject_rate),
            present=_present,
            priority=READ_FIRST,
        )
        for name, bucket in recipe.corpus.buckets.items()
    ]


def _has_pages(bucket: Bucket) -> bool:
    return any(source.kind in ("warc", "html") for source in bucket.sources)


def _readers(bucket: Bucket) -> dict[str, Any]:
    """The packages that readers of the bucket come from, where there are any."""
    found = {source.kind: identity(source.kind) for source in bucket.sources}
    installed = {kind: package for kind, package in sorted(found.items()) if package}
    return {"readers": installed} if installed else {}


def _make(name: str, bucket: Bucket, recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    found = listed(bucket, ctx, inputs)
    published = inputs[f"{name}/sources"].stats["inventory"]
    if found.digest != published:
        raise SourceError(
            f"the sources of {name} changed while the run was going",
            found=f"inventory {found.digest[:16]}",
            expected=f"inventory {published[:16]}",
            remedy="run the same command again",
        )
    try:
        lists = {key: made for key, made in inputs.items() if key.startswith("lists/")}
        gate, taken_down = gate_of(recipe.corpus.illegal, lists), exclusions.read(ctx)
        read = {**lists, **{key: inputs[key] for key in written(name, bucket)}}
        return documents.run(ctx, name, bucket, recipe.corpus.documents, found, gate, read, taken_down)
    except IntegrityError:  # a remembered digest was wrong: the next run reads all files again
        remembered(ctx.workspace).forget()
        raise


def _suite(max_reject_rate: float, made: Manifest, inputs: Inputs) -> Suite:
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


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
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
    """Records that the illegal-content gate stopped, by list and by kind of hit; `plinth corpus quarantine` lists
    them."""
    rows = [["list", name, count] for name, count in counts["lists"].items()]
    rows += [["kind", name, count] for name, count in counts["kinds"].items()]
    return {
        "quarantined": counts["records"],
        "quarantine": markdown(table(["by", "name", "records"], rows)),
    }
