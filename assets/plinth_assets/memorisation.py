"""`memorisation/canaries`: exposure of the canaries that the run was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.corpus.canaries.parameters import BUCKET as CANARIES
from plinth.evaluation.memorisation import canaries, exposure
from plinth.evaluation.memorisation.draws import draws, seen_through
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.training import config
from plinth_assets.framework.expectations import Suite, between
from plinth_assets.framework.inputs import planted, shared_owner
from plinth_assets.framework.present import markdown, picture, table
from plinth_assets.framework.stage import Inputs, Say, Stage


def stages(recipe: Recipe) -> list[Stage]:
    """Exposure, where the recipe plants canaries."""
    return _exposure(recipe) if recipe.corpus.canaries is not None else []


def _exposure(recipe: Recipe) -> list[Stage]:
    return [
        Stage(
            asset=canaries.ASSET,
            deps=("checkpoint", "run", "mixture", *planted(recipe, "curated", "shards")),
            make=partial(_make, recipe),
            version=canaries.VERSION,
            params={},
            group="evaluation",
            description="Exposure of planted texts by repetitions, one p-value for all, a lower bound on epsilon.",
            owner=shared_owner(recipe),
            kinds=("pytorch",),
            schema=canaries.SCHEMA,
            suite=_suite,
            present=_present,
            pool="training",
        )
    ]


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    texts, shards = inputs[f"{CANARIES}/curated"], inputs[f"{CANARIES}/shards"]
    run = inputs.get("run")
    if run is None:  # of another's weights, or of a run on other shards: a model that never saw these texts
        return canaries.run(ctx, inputs["checkpoint"], texts, {})
    steps = config.load(ctx.workspace.runs / run.stats["run_id"] / "config.json").steps
    copies = draws(ctx, inputs["mixture"], shards, texts, steps)
    seen = seen_through(copies, int(inputs["checkpoint"].stats["step"]), run.stats["skipped_steps"])
    return canaries.run(ctx, inputs["checkpoint"], texts, seen)


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    """A p-value has canaries in and out, and references, behind it."""
    stats = made.stats
    row = {"planted": stats["planted"], "out": stats["canaries"] - stats["planted"], "references": stats["references"]}
    expectations = [between("planted", 1, None), between("out", 1, None), between("references", 128, None)]
    return Suite("memorisation-canaries", [row], expectations)


def _p_value(group: Mapping[str, Any]) -> str:
    return f"{exposure.p_value_of_group(group):.2g}" if group["canaries"] else "-"


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    from plinth.report import memorisation

    header = ["repetitions", "canaries", "copies seen", "exposure, bits", "from", "to", "median", "fitted median",
              "p-value"]  # fmt: skip
    groups = {**made.stats["groups"], "not planted": made.stats["out"]}
    rows = [[name, *memorisation.group_cells(group), _p_value(group)] for name, group in groups.items()]
    audit = made.stats["audit"]
    return {
        "exposure_by_repetitions": picture(memorisation.exposure, made.stats),
        "exposure": markdown(table(header, rows)),
        "p_value_all_planted": float(made.stats["p_value"]),
        "epsilon_at_least": float(audit["epsilon"]),
        "membership_inference_correct": f"{audit['right']} of {audit['guesses']}",
    }
