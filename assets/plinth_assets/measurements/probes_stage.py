"""The asset `probe_sets` has the items of every probe, which training must not see. The asset `probes` has the
checkpoint's score on every probe, with a control and the contamination status of the items. Scores can be recomputed,
compared between two models, and shown on the evaluation page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from plinth.compute.context import Context
from plinth.evaluation.comparison.pairs import Pairs, by_name, part_table
from plinth.evaluation.measurement import Figures, ModelScores, Stats
from plinth.evaluation.parameters import FAMILIES
from plinth.evaluation.probes import job, probe_sets
from plinth.evaluation.probes.noise import Worth
from plinth.evaluation.probes.scoring import EXCLUDED
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.report.evaluation import BITS, Measure, Section, TextTable, group, measure
from plinth.storage.parts import named_table
from plinth.storage.store import Store
from plinth_assets.framework import Inputs, Stage, Suite, between, rows_between, shared_owner
from plinth_assets.framework.present import markdown, picture, table


def set_stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that builds the probe items, if the recipe has a run to measure."""
    probes = recipe.probes
    if probes is None:
        return []
    files = bool(probes.sets) or bool({*probes.families} - {*FAMILIES})
    return [
        Stage(
            asset=probe_sets.ASSET,
            deps=(),
            make=lambda ctx, inputs, _: probe_sets.run(ctx, probes),
            outside=partial(probe_sets.outside, params=probes) if files else None,
            version=probe_sets.VERSION,
            params=probes.model_dump(mode="json"),
            libraries=probe_sets.LIBRARIES,
            group="sources",
            description="Items of built-in and user probes, excluded from training.",
            owner=shared_owner(recipe),
            kinds=("python",),
            suite=_suite_sets,
            present=_present_sets,
        )
    ]


def _suite_sets(made: Manifest, inputs: Inputs) -> Suite:
    rows = [{"items": own["items"], "rejects": own["rejects"]} for own in made.stats["sets"].values()]
    return Suite(probe_sets.ASSET, rows, [rows_between(1), between("items", 1, None)])


def _present_sets(ctx: Context, made: Manifest) -> dict[str, Any]:
    header = ["probe", "family", "items", "templates", "bytes", "rejects", "digest"]
    rows = [
        [name, *(own[column] for column in header[1:-1]), own["digest"][:12]]
        for name, own in made.stats["sets"].items()
    ]
    return {"probes": markdown(table(header, rows))}


def stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that scores the checkpoint on probes, if the recipe has probes."""
    if recipe.probes is None:
        return []
    return [
        Stage(
            asset=job.ASSET,
            deps=("checkpoint", probe_sets.ASSET, "protected"),
            make=lambda ctx, inputs, _: job.run(
                ctx, inputs["checkpoint"], inputs[probe_sets.ASSET], inputs["protected"]
            ),
            version=job.VERSION,
            params={},
            group="evaluation",
            description="Probes by family: bits per byte of correct answers against a control, margin over the best "
            "wrong answer, accuracy above chance; contaminated items are reported separately.",
            owner=shared_owner(recipe),
            kinds=("pytorch", "parquet"),
            schema=job.SCHEMA,
            suite=_suite_probes,
            present=_present_probes,
            pool="training",
        )
    ]


def _suite_probes(made: Manifest, inputs: Inputs) -> Suite:
    """Check that every probe item is scored, excluded because it occurs in training text, or too long."""
    wanted = inputs[probe_sets.ASSET].stats["sets"]
    rows = [
        {"lost": wanted[name]["items"] - sum(row["statuses"].values())} for name, row in made.stats["probes"].items()
    ]
    return Suite(job.ASSET, rows, [rows_between(len(wanted), len(wanted)), between("lost", 0, 0)])


def _present_probes(ctx: Context, made: Manifest) -> dict[str, Any]:
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
    """Return the table cells of a probe's estimates with their intervals."""
    found = (row.get(name) for name in ("bits_per_byte", "control", "signal", "margin", "accuracy"))
    return ["" if one is None else f"{one['value']:.3f} ({one['low']:.3f} … {one['high']:.3f})" for one in found]


def _templates(probes: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return a table with the templates of each probe that have the highest and the lowest signal."""
    header, rows = ["probe", "template", "items", "bits per byte", "signal", "95% interval", "accuracy"], []
    for probe, templates in probes.items():
        ranked = sorted(templates.items(), key=lambda pair: -pair[1]["signal"])
        for name, row in dict([*ranked[:3], *ranked[-3:]]).items():
            interval = f"{row['low']:.3f} … {row['high']:.3f}"
            numbers = [row["items"], row["bits_per_byte"], row["signal"], interval, row.get("accuracy", "")]
            rows.append([probe, name, *numbers])
    return table(header, rows)


RIGHT_ANSWERS = "Correct answers by probe"


def recount(ctx: Context, made: Manifest, _: Mapping[str, Manifest]) -> Figures:
    rows = named_table(ctx.store, made, job.FILE).to_pylist()
    own: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        own.setdefault(row["probe"], [])
        if row["bits"] is not None and row["status"] not in EXCLUDED:
            own[row["probe"]].append(row)
    counted = {name: {"items": len(kept), **_signal(kept)} for name, kept in own.items()}
    stated = {
        name: {"items": row["items"], **({"signal": row["signal"]["value"]} if "signal" in row else {})}
        for name, row in made.stats["probes"].items()
    }
    return stated, counted


def _signal(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the bits per byte that the correct context of an item saves compared with a shuffled context, as a ratio
    of sums."""
    size = sum(row["bytes"] for row in rows)
    return {"signal": math.fsum(row["control_bits"] - row["bits"] for row in rows) / size} if size else {}


def pairs(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Yield the paired bits of right answers for each probe. For probes with choices, also yield the paired accuracy
    above chance. Templates are the clusters."""
    sides = [part_table(store, made, "items.parquet") for made in (a, b)]
    for what, value, weight in ((BITS, "bits", "bytes"), ("accuracy above chance", "centred", None)):
        yield from by_name("probes", "probe", what, sides, value, weight, cluster="template")


def scores(made: Manifest) -> ModelScores:
    """Return the estimates of every probe, for MLflow."""
    groups = {f"{made.asset}/{name}": job.estimates(row) for name, row in made.stats["probes"].items()}
    return ModelScores(probe_sets.ASSET, made.inputs[probe_sets.ASSET], groups)


def section(_: str, stats: Stats) -> Section:
    """Build the page section with the scores of probes and their controls, by family and by probe."""
    rows = stats["probes"]
    right = [
        measure(name, row["bits_per_byte"], reference=row["control"]["value"])
        for name, row in rows.items()
        if row.get("bits_per_byte")
    ]
    accuracy = [measure(name, row["accuracy"], reference=0.0) for name, row in rows.items() if row.get("accuracy")]
    signals = {name: row["signal"] for name, row in stats["families"].items() if row.get("signal")}
    families = [measure(name, row, reference=0.0) for name, row in signals.items()]
    groups = (
        group("Signal by family", BITS, "higher", "none", families),
        group(RIGHT_ANSWERS, BITS, "lower", "control", right),
        group("Accuracy above chance, by probe", "share", "higher", "chance", accuracy),
    )
    return Section(
        key="probes",
        title="Probes",
        lead="Only items that do not occur in the training text are scored here. The signal is the bits per byte of "
        "the correct answer after a shuffled context, minus its bits per byte after the original context.",
        groups=tuple(group for group in groups if group.measures),
        tables=(_statuses(rows),),
    )


def with_worth(section: Section, worth: Mapping[str, Worth]) -> Section:
    """Add each probe's noise over the run to the page section of probes. Probes are gray if their signal is not known
    to exceed their noise."""
    groups = tuple(
        group.model_copy(update={"measures": tuple(_judged(one, worth.get(one.name)) for one in group.measures)})
        if group.title == RIGHT_ANSWERS
        else group
        for group in section.groups
    )
    quiet = sorted({one.name for group in groups for one in group.measures if not one.decides})
    lead = (
        " Gray probes cannot be distinguished from noise, so they are not used for stopping or gates "
        f"({', '.join(quiet)})."
    )
    return section.model_copy(update={"groups": groups, "lead": section.lead + lead * bool(quiet)})


def _judged(one: Measure, worth: Worth | None) -> Measure:
    if worth is None:
        return one.model_copy(update={"decides": False, "note": ", ".join(filter(None, (one.note, "noise unknown")))})
    ratio = "" if worth.snr is None else f"signal over noise {worth.snr:.2g}"
    note = ", ".join(filter(None, (one.note, ratio)))
    return one.model_copy(update={"noise": worth.noise, "decides": worth.decides, "note": note})


def _statuses(rows: Mapping[str, Stats]) -> TextTable:
    """Build the table with the number of each probe's items by contamination status."""
    names = sorted({status for row in rows.values() for status in row["statuses"]})
    return TextTable(
        title="Items by contamination status",
        header=("probe", *names, "too long (included)"),
        rows=tuple(
            (name, *(f"{row['statuses'].get(status, 0):,}" for status in names), f"{row['too_long']:,}")
            for name, row in rows.items()
        ),
    )
