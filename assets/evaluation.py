"""`evaluation`: bits per byte on every held-out slice, beside two baselines on the same bytes."""

from __future__ import annotations

from functools import partial
from typing import Any

import dagster as dg

from assets.framework.inputs import by_bucket, each, shared_owner
from assets.framework.present import picture, table
from assets.framework.stage import Inputs, Say, Stage
from plinth.compute.context import Context
from plinth.evaluation import job
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest


def stages(recipe: Recipe) -> list[Stage]:
    """One evaluation per checkpoint."""
    return [
        Stage(
            asset="evaluation",
            deps=("checkpoint", *each(recipe, "curated", "documents", "language"), *_protected(recipe)),
            make=partial(_make, recipe),
            version=job.VERSION,
            params=recipe.evaluation.model_dump(mode="json"),
            group="evaluation",
            description="Bits per byte by bucket and language, and of items of protected sets by whether training text "
            "held them; gzip -9 and a byte trigram on the same bytes.",
            owner=shared_owner(recipe),
            kinds=("pytorch",),
            present=_present,
            pool="training",
        )
    ]


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    curated, documents, language = (by_bucket(recipe, inputs, kind) for kind in ("curated", "documents", "language"))
    sets = {name: inputs[f"protected/{name}"] for name in recipe.corpus.protected.sets}
    compared = inputs["protected"] if sets else None
    checkpoint = inputs["checkpoint"]
    return job.run(ctx, recipe.evaluation, checkpoint, curated, documents, language, protected=compared, sets=sets)


def _protected(recipe: Recipe) -> tuple[str, ...]:
    """The comparison with protected sets and the sets, where the recipe names some."""
    sets = recipe.corpus.protected.sets
    return ("protected", *(f"protected/{name}" for name in sets)) if sets else ()


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    from plinth.report import figures

    slices = made.stats["slices"] | made.stats["languages"]
    header = ["slice", "bytes", "model", "gzip", "trigram"]
    rows = [[name, row["bytes"], row["model"], row["gzip"], row["trigram"]] for name, row in slices.items()]
    items = {
        f"{name}: {status}": row
        for name, found in made.stats.get("protected", {}).items()
        for status, row in found.items()
    }
    rows += [[name, row["bytes"], row["model"], row["gzip"], row["trigram"]] for name, row in items.items()]
    return {
        "bits_per_byte": picture(figures.bits_per_byte, made.stats["slices"]),
        "slices": dg.MetadataValue.md(table(header, rows)),
    }
