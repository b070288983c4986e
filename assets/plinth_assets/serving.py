"""`serving`: what it costs to serve the checkpoint on named devices, beside what was measured on this machine."""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.evaluation import serving
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.framework.inputs import shared_owner
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage


def stages(recipe: Recipe) -> list[Stage]:
    """One asset per checkpoint."""
    return [
        Stage(
            asset=serving.ASSET,
            deps=("checkpoint",),
            make=partial(_make, recipe),
            version=serving.VERSION,
            params={},
            group="evaluation",
            description="Serving on named devices: tokens per second, time to the first token, sequences that fit; "
            "bounds by bandwidth and FLOP/s. Measured speeds of this machine beside them are a record, not the asset.",
            owner=shared_owner(recipe),
            present=_present,
            pool="training",
        )
    ]


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    checkpoint = inputs["checkpoint"]
    if serving.read(ctx, checkpoint.digest) is None:
        found = serving.measure(ctx, checkpoint)
        say(f"{found['tokens_per_s']['1']:.0f} tokens/s, first token after {found['first_token_s'] * 1000:.0f} ms here")
    return serving.run(ctx, checkpoint)


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    import dagster as dg

    header = ["device", "first token, s", "tokens/s, one sequence", "sequences that fit", "tokens/s, all of them"]
    names = ("first_token_s", "tokens_per_s", "sequences", "tokens_per_s_full")
    rows = [[name, *(one[field] for field in names)] for name, one in made.stats["devices"].items()]
    shown: dict[str, Any] = {
        "kv_bytes_per_token": made.stats["kv_bytes_per_token"],
        "weights_bytes": made.stats["weights_bytes"],
        "devices": markdown(table(header, rows)),
    }
    here = serving.read(ctx, made.inputs["checkpoint"])
    return shown if here is None else shown | {"measured_here": dg.MetadataValue.json(here)}
