"""`probes`: every probe under the checkpoint, with its control and whether training text held its items."""

from __future__ import annotations

from typing import Any

from plinth.compute.context import Context
from plinth.evaluation.probes import job, probe_sets
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.framework.expectations import Suite, between, rows_between
from plinth_assets.framework.inputs import shared_owner
from plinth_assets.framework.present import markdown, picture, table
from plinth_assets.framework.stage import Inputs, Say, Stage


def stages(recipe: Recipe) -> list[Stage]:
    """One scoring per checkpoint, where the recipe wants probes."""
    if recipe.probes is None:
        return []
    return [
        Stage(
            asset=job.ASSET,
            deps=("checkpoint", probe_sets.ASSET, "protected"),
            make=_make,
            version=job.VERSION,
            params={},
            group="evaluation",
            description="Probes by family: bits per byte of right answers against a control, margin over the best "
            "wrong one, accuracy above chance; items that training text held are apart.",
            owner=shared_owner(recipe),
            kinds=("pytorch", "parquet"),
            schema=job.SCHEMA,
            suite=_suite,
            present=_present,
            pool="training",
        )
    ]


def _make(ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return job.run(ctx, inputs["checkpoint"], inputs[probe_sets.ASSET], inputs["protected"])


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    """Every item is accounted for: scored, apart because training text held it, or too long."""
    wanted = inputs[probe_sets.ASSET].stats["sets"]
    rows = [
        {"lost": wanted[name]["items"] - sum(row["statuses"].values())} for name, row in made.stats["probes"].items()
    ]
    return Suite(job.ASSET, rows, [rows_between(len(wanted), len(wanted)), between("lost", 0, 0)])


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    from plinth.report import figures

    probes = made.stats["probes"]
    header = ["probe", "items", "too long", "held", "bits per byte", "control", "signal", "margin", "accuracy"]
    rows = [
        [name, row["items"], row["too_long"], row.get("held", {}).get("items", 0), *_shown(row)]
        for name, row in probes.items()
    ]
    return {
        "probes": picture(figures.probe_scores, probes),
        "scores": markdown(table(header, rows)),
        "templates": markdown(_templates(made.stats["templates"])),
    }


def _shown(row: dict[str, Any]) -> list[str]:
    """Estimates with their intervals."""
    found = (row.get(name) for name in ("bits_per_byte", "control", "signal", "margin", "accuracy"))
    return ["" if one is None else f"{one['value']:.3f} ({one['low']:.3f} … {one['high']:.3f})" for one in found]


def _templates(probes: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Templates with the greatest and the least signal, of every probe."""
    header, rows = ["probe", "template", "items", "bits per byte", "signal", "95% interval", "accuracy"], []
    for probe, templates in probes.items():
        ranked = sorted(templates.items(), key=lambda pair: -pair[1]["signal"])
        for name, row in dict([*ranked[:3], *ranked[-3:]]).items():
            interval = f"{row['low']:.3f} … {row['high']:.3f}"
            numbers = [row["items"], row["bits_per_byte"], row["signal"], interval, row.get("accuracy", "")]
            rows.append([probe, name, *numbers])
    return table(header, rows)
