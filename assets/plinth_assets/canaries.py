"""`canaries/curated`, `canaries/shards`, `canaries/packed`: generated texts, planted to measure memorisation."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus import planted_canaries
from plinth.corpus.canaries.parameters import BUCKET
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.schemas import DOCUMENT_SCHEMA
from plinth.tokens.order.parameters import lengths
from plinth.tokens.tokenizer.vocabulary import lexis_of
from plinth_assets import packing, shards
from plinth_assets.framework.expectations import Suite, between, equal_columns
from plinth_assets.framework.inputs import shared_owner
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage


def stages(recipe: Recipe) -> list[Stage]:
    """The planted copies and their tokens; none where the recipe plants nothing."""
    if recipe.corpus.canaries is None:
        return []
    owner = shared_owner(recipe)
    planted = Stage(
        asset=planted_canaries.ASSET,
        deps=("tokenizer",),
        make=partial(_make, recipe),
        version=planted_canaries.VERSION,
        params=recipe.corpus.canaries.model_dump(mode="json") | _rows(recipe),
        libraries=fingerprint.libraries("tokenizers"),
        group="curated",
        description="Generated texts at set repetitions, in or out by coin, that measure memorisation: no text of the "
        "corpus, and in no count of it.",
        owner=owner,
        kinds=("parquet",),
        schema=DOCUMENT_SCHEMA,
        suite=_suite,
        present=_present,
    )
    cut = shards.of_bucket(BUCKET, recipe.shards.model_copy(update={"axes": ()}), owner)
    best_fit = recipe.required_mixture().packing == "best-fit"
    packed = [packing.of_bucket(BUCKET, recipe, owner)] if best_fit else []
    return [planted, cut, *packed]


def _rows(recipe: Recipe) -> dict[str, Any]:
    mixture = recipe.required_mixture()
    return {
        "sequence_tokens": mixture.sequence_tokens,
        "row_tokens": sorted({length for _, length in lengths(recipe.training)}),
        "concatenated": mixture.packing == "concatenate",
    }


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    assert recipe.corpus.canaries is not None
    lexis = lexis_of(ctx.store, inputs["tokenizer"])
    return planted_canaries.run(ctx, recipe.corpus.canaries, inputs["tokenizer"], lexis, **_rows(recipe))


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    stats = made.stats
    row = {
        "documents": stats["documents"],
        "accounted": stats["copies"] + stats["fillers"],
        "planted": stats["planted"],
        "out": stats["canaries"] - stats["planted"],
    }
    expectations = [equal_columns("documents", "accounted"), between("planted", 1, None), between("out", 1, None)]
    return Suite(BUCKET, [row], expectations)


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    names = ("canaries", "planted", "copies", "fillers", "references", "document_tokens")
    return {"planted": markdown(table(["fact", "value"], [[name, made.stats[name]] for name in names]))}
