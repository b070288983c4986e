"""`ledger`: one row per document with all that is known of it, for any engine that reads Parquet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.corpus import verdicts
from plinth.corpus.canaries.parameters import BUCKET as CANARIES
from plinth.provenance import ledger
from plinth.provenance.ledger_columns import BASE
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets import curate
from plinth_assets.annotate import annotator_parameters
from plinth_assets.framework.expectations import Suite, equal_columns, rows_between
from plinth_assets.framework.inputs import by_bucket, each, planted, shared_owner
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage


def stages(recipe: Recipe) -> list[Stage]:
    """The ledger of the whole corpus."""
    kinds = ("documents", *annotator_parameters(recipe), "policy", "verdicts", "curated")
    placed = () if recipe.mixture is None else (*each(recipe, "shards"),)
    mixed = () if recipe.mixture is None else ("mixture",)
    return [
        Stage(
            asset=ledger.ASSET,
            deps=(*each(recipe, *kinds), *placed, *shared(recipe).values(), *_planted(recipe), *mixed),
            make=partial(_make, recipe),
            version=ledger.VERSION,
            params={},
            group="report",
            description="Every document with source, terms, scores, duplicates, verdict, edits, weight and shard.",
            owner=shared_owner(recipe),
            kinds=("parquet",),
            schema=BASE,
            suite=_suite,
            present=_present,
        )
    ]


def shared(recipe: Recipe) -> dict[str, str]:
    """Stages over all buckets that verdicts are made of, by the name they have in columns."""
    buckets = recipe.corpus.buckets
    deps = [dep for stage in curate.stages(recipe) if stage.asset.endswith("/verdicts") for dep in stage.deps]
    keys = dict.fromkeys(dep for dep in deps if dep.partition("/")[0] not in buckets)
    names = {asset: name for name, asset in verdicts.ASSETS.items()}
    return {names.get(key, key.rpartition("/")[2]): key for key in keys}


def _planted(recipe: Recipe) -> tuple[str, ...]:
    """Curated text and shards of what was planted, in a recipe with a mixture."""
    return planted(recipe, "curated", "shards") if recipe.mixture is not None else ()


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    def of(kind: str) -> Mapping[str, Manifest]:
        return by_bucket(recipe, inputs, kind)

    made = ledger.Made(
        documents=of("documents"),
        policies=of("policy"),
        verdicts=of("verdicts"),
        annotations={name: of(name) for name in annotator_parameters(recipe)},
        shared={name: inputs[key] for name, key in shared(recipe).items()},
        curated=of("curated"),
        shards=None if recipe.mixture is None else of("shards"),
        mixture=inputs.get("mixture"),
        canaries=tuple(inputs[key] for key in _planted(recipe)),
    )
    return ledger.run(ctx, made)


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    """Every document has its row, and every one that is trained on its place: in shards, else in curated text."""
    documents = [one for key, one in inputs.items() if key.endswith("/documents")]
    last = "/shards" if "mixture" in inputs else "/curated"
    places = [one for key, one in inputs.items() if key.endswith(last) and not key.startswith(f"{CANARIES}/")]
    row = {
        "rows": made.stats["documents"],
        "documents": sum(int(one.stats["documents"]) for one in documents),
        "trained": made.stats["trained"],
        "placed": sum(int(one.stats["documents"]) for one in places),
        "rejects": made.stats["rejects"],
        "refused": sum(sum(one.stats.get("rejects", {}).values()) for one in documents),
    }
    expectations = [
        rows_between(1),
        equal_columns("rows", "documents"),
        equal_columns("trained", "placed"),
        equal_columns("rejects", "refused"),
    ]
    return Suite("ledger", [row], expectations)


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    rows: dict[str, list[int]] = {}
    for part in made.parts:
        bucket, _, name = part.name.partition("/")
        own = rows.setdefault(bucket, [0, 0, 0])
        own[0 if name.startswith("part-") else 1] += part.rows
        own[2] += part.blob.bytes
    listed = [[bucket, *numbers] for bucket, numbers in rows.items()]
    example = "select reason, count(*) from 'ledger/*.parquet' group by all order by 2 desc"
    return {
        "rows": markdown(table(["bucket", "documents", "rejects", "bytes"], listed)),
        "query": markdown(f'`plinth corpus ledger export ledger`, then `duckdb -c "{example}"`'),
    }
