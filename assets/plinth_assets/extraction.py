"""`memorisation/extraction`: whether the checkpoint continues training text of risk word for word."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.corpus.lists import lists
from plinth.evaluation.memorisation import extraction
from plinth.evaluation.memorisation.text_windows import Taken
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.training import config
from plinth_assets.framework.expectations import Suite, between
from plinth_assets.framework.inputs import by_bucket, each, shared_owner
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage


def stages(recipe: Recipe) -> list[Stage]:
    """One test per checkpoint, where the recipe asks for it."""
    params = recipe.evaluation.extraction
    if params is None:
        return []
    return [
        Stage(
            asset=extraction.ASSET,
            deps=("checkpoint", "run", "mixture", "tokenizer", "ledger", *each(recipe, "curated", "shards")),
            make=partial(_make, recipe),
            version=extraction.VERSION,
            params=params.model_dump(mode="json"),
            group="evaluation",
            description=f"{params.prefix_tokens} tokens of text of risk are given, {params.suffix_tokens} compared "
            "with what the model writes: exact and near matches, beside held-out text.",
            owner=shared_owner(recipe),
            kinds=("pytorch", "parquet"),
            schema=extraction.SCHEMA,
            outside=partial(_outside, params.listed) if params.listed else None,
            suite=_suite,
            present=_present,
            pool="training",
        )
    ]


def _outside(location: str, ctx: Context) -> str:
    return lists.digest(ctx, location)


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    params = recipe.evaluation.extraction
    assert params is not None
    run, checkpoint = inputs["run"], inputs["checkpoint"]
    steps = config.load(ctx.workspace.runs / run.stats["run_id"] / "config.json").draws
    taken = Taken(inputs["mixture"], steps, int(checkpoint.stats["step"]), frozenset(run.stats["skipped_steps"]))
    listed = tuple(lists.entries(ctx, params.listed)) if params.listed else ()
    curated, shards = (by_bucket(recipe, inputs, kind) for kind in ("curated", "shards"))
    return extraction.run(
        ctx, params, checkpoint, inputs["tokenizer"], inputs["ledger"], curated, shards, taken, listed
    )


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    every = made.stats["slices"].get("all", {"n": 0})
    row = {"documents": every["n"], "control": (every.get("control") or {"n": 0})["n"]}
    expectations = [between("documents", 1, None), between("control", 1, None, "warning")]
    return Suite("memorisation-extraction", [row], expectations)


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    header = [
        "slice",
        "documents",
        "exact",
        "near",
        "either at most",
        "held out: documents",
        "either",
        "excess at least",
    ]
    rows = []
    for name, own in made.stats["slices"].items():
        control = own["control"] or {"n": 0}
        cells = [own[kind]["count"] for kind in ("exact", "near")] + [own["either"]["upper"]] if own["n"] else [""] * 3
        beside = [control["n"], control["either"]["count"]] if control["n"] else [0, ""]
        rows.append([name, own["n"], *cells, *beside, own.get("excess_at_least") or 0.0])
    limit = made.stats["upper"]
    return {
        "extraction": markdown(table(header, rows)),
        **({"either_at_most": float(limit)} if limit is not None else {}),
        "trace": "`plinth corpus trace latest` names the documents of what was extracted",
    }
