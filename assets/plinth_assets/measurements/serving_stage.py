"""The asset `serving`: bounds on the speed of serving the checkpoint on named devices, and speeds measured on this
machine. Both are shown as numbers in MLflow and as a section of the evaluation page.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.evaluation import serving
from plinth.evaluation.measurement import ModelScores, Stats
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.report.evaluation import Section, TextTable
from plinth.report.style import count
from plinth_assets.framework import Inputs, Say, Stage, shared_owner
from plinth_assets.framework.present import markdown, table


def stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that computes the serving bounds of the checkpoint."""
    return [
        Stage(
            asset=serving.ASSET,
            deps=("checkpoint",),
            make=partial(_make, recipe),
            version=serving.VERSION,
            params={},
            group="evaluation",
            description="Bounds on the serving speed of named devices, computed from bandwidth and FLOP/s: tokens per "
            "second, time to first token and maximum batch size. Speeds measured on this machine are recorded "
            "separately.",
            owner=shared_owner(recipe),
            present=_present,
            pool="training",
        )
    ]


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    checkpoint = inputs["checkpoint"]
    if serving.read(ctx, checkpoint.digest) is None:
        found = serving.measure(ctx, checkpoint)
        say(
            f"measured on this machine: {found['tokens_per_s']['1']:.0f} tokens/s, first token after "
            f"{found['first_token_s'] * 1000:.0f} ms"
        )
    return serving.run(ctx, checkpoint)


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    import dagster as dg

    header = ["device", "first token, s", "tokens/s, batch 1", "max batch", "tokens/s, max batch"]
    names = ("first_token_s", "tokens_per_s", "sequences", "tokens_per_s_full")
    rows = [[name, *(one[field] for field in names)] for name, one in made.stats["devices"].items()]
    shown: dict[str, Any] = {
        "kv_bytes_per_token": made.stats["kv_bytes_per_token"],
        "weights_bytes": made.stats["weights_bytes"],
        "devices": markdown(table(header, rows)),
    }
    here = serving.read(ctx, made.inputs["checkpoint"])
    return shown if here is None else shown | {"measured_here": dg.MetadataValue.json(here)}


def scores(made: Manifest) -> ModelScores:
    """Return the model's size in bytes and its serving bounds on every device, for MLflow."""
    groups = {serving.ASSET: {name: made.stats[name] for name in ("kv_bytes_per_token", "weights_bytes")}}
    groups |= {f"{serving.ASSET}/{device}": found for device, found in made.stats["devices"].items()}
    estimates = {prefix: {name: {"value": one} for name, one in found.items()} for prefix, found in groups.items()}
    return ModelScores(serving.ASSET, fingerprint.digest(made.params), estimates)


def section(_: str, stats: Stats) -> Section:
    """Build the page section with the bounds on serving the checkpoint on rentable devices."""
    fields = {"first_token_s": _milliseconds, "tokens_per_s": count, "sequences": count, "tokens_per_s_full": count}
    rows = [
        (name, *("does not fit" if own[field] is None else form(own[field]) for field, form in fields.items()))
        for name, own in stats["devices"].items()
    ]
    header = ("device", "first token", "tokens/s, batch 1", "max batch", "tokens/s, max batch")
    return Section(
        key="serving",
        title="Serving",
        lead=f"The KV cache needs {stats['kv_bytes_per_token']:,} bytes per token. The speeds are upper bounds for any "
        "implementation, computed from bandwidth and FLOP/s.",
        tables=(TextTable(title="Bounds by device", header=header, rows=tuple(rows)),),
    )


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
