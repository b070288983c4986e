"""The stage `memorisation/canaries`, and its items: recomputed, compared between two models, shown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.corpus import planted_canaries
from plinth.corpus.canaries.parameters import BUCKET as CANARIES
from plinth.evaluation.comparison.pairs import Pairs, align, chosen, labelled, part_table
from plinth.evaluation.measurement import Figures, Stats
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.report.evaluation import Section, group, measure
from plinth.report.style import ACCENT, MUTED, WIDTH_INCHES
from plinth.storage.parts import named_table
from plinth.storage.store import Store
from plinth.text import counted
from plinth.tokens.order.batch import draws, seen_through
from plinth.training import config
from plinth_assets.framework.expectations import Suite, between
from plinth_assets.framework.inputs import planted, shared_owner
from plinth_assets.framework.present import markdown, picture, table
from plinth_assets.framework.stage import Inputs, Say, Stage
from plinth_audit.canaries import canaries, exposure
from plinth_audit.canaries.exposure import ALL_PLANTED, PLANTED_TIMES, p_value_of_group

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: Mean exposure, in bits, of a text that the model never saw.
UNSEEN = 1 / math.log(2)


def stages(recipe: Recipe) -> list[Stage]:
    """Exposure, where the recipe plants canaries."""
    if recipe.corpus.canaries is None:
        return []
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

    header = ["repetitions", "canaries", "copies seen", "exposure, bits", "from", "to", "median", "fitted median",
              "p-value"]  # fmt: skip
    groups = {**made.stats["groups"], "not planted": made.stats["out"]}
    rows = [[name, *_cells(group), _p_value(group)] for name, group in groups.items()]
    audit = made.stats["audit"]
    return {
        "exposure_by_repetitions": picture(figure, made.stats),
        "exposure": markdown(table(header, rows)),
        "p_value_all_planted": float(made.stats["p_value"]),
        "epsilon_at_least": float(audit["epsilon"]),
        "membership_inference_correct": f"{audit['right']} of {audit['guesses']}",
    }


def recount(ctx: Context, made: Manifest, _: Mapping[str, Manifest]) -> Figures:
    table = named_table(ctx.store, made, canaries.TABLE)
    canary = pc.equal(table["kind"], "canary")
    own, references = table.filter(canary), table.filter(pc.invert(canary))["bits"].to_numpy()
    ranks = exposure.ranks(own["bits"].to_numpy(), references)
    wrong = int((ranks != own["rank"].to_numpy()).sum())
    wrong += int((~np.isclose(exposure.exposures(ranks, len(references)), own["exposure"].to_numpy())).sum())
    counted = _exposed(canaries.summary(table)) | {"wrong ranks": wrong}
    return _exposed(made.stats) | {"wrong ranks": 0}, counted


def _exposed(stats: Mapping[str, Any]) -> dict[str, Any]:
    groups = {
        name: {"canaries": one["canaries"], **{key: one["exposure"][key] for key in ("n", "value")}}
        for name, one in stats["groups"].items()
        if one["canaries"]
    }
    return {"planted": stats["planted"], "groups": groups, "epsilon": stats["audit"]["epsilon"]}


def pairs(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Exposure in bits, canary by canary: of those that were planted, by repetitions, and of those that were not.

    Raises:
        IntegrityError: the canaries are other texts.
    """
    texts = [made.inputs[planted_canaries.ASSET] for made in (a, b)]
    sides = [part_table(store, made, "canaries.parquet") for made in (a, b)]
    sides = [side.append_column("text", pa.repeat(text, len(side))) for side, text in zip(sides, texts, strict=True)]
    own = [side.filter(pc.equal(side["kind"], "canary")) for side in sides]
    for inside, what in ((True, "canaries that were planted"), (False, "canaries that were not planted")):
        pair = []
        for side in own:
            rows = side.filter(pc.equal(side["planted"], inside))
            slices = labelled(rows, {"repetitions": "repetitions"}) if inside else None
            pair.append(chosen(rows, "exposure", item="number", text="text", slices=slices))
        yield align("memorisation", f"exposure in bits, {what}", *pair, fewer_is_better=True, ratio=False)


def section(_: str, stats: Stats) -> Section:
    """Exposure of planted texts by how often they were planted."""
    groups = {counted(int(name), "time"): stats["groups"][name] for name in sorted(stats["groups"], key=int)}
    groups["not planted"] = stats["out"]
    measures = [measure(name, row["exposure"], reference=UNSEEN) for name, row in groups.items() if row["canaries"]]
    audit = stats["audit"]
    by_count = "; ".join(
        f"{PLANTED_TIMES.format(count=counted(int(name), 'time'))}: {p_value_of_group(stats['groups'][name]):.2g}"
        for name in sorted(stats["groups"], key=int)
        if stats["groups"][name]["canaries"]
    )
    return Section(
        key="canaries",
        title="Memorisation: canaries",
        lead=f"{stats['planted']:,} generated texts were planted, each by its own coin; {stats['references']:,} others "
        f"never entered. {ALL_PLANTED}: {stats['p_value']:.2g}. {by_count}. "
        f"Membership inference: {audit['right']}/{audit['guesses']} correct; epsilon ≥ {audit['epsilon']:.2f}.",
        groups=(group("Exposure by repetitions", "bits", "lower", "never seen", measures),),
    )


def figure(stats: Mapping[str, Any]) -> Figure:
    """Mean exposure of each group of repetitions with its interval, beside what chance gives."""
    from matplotlib.figure import Figure

    groups = {**stats["groups"], "out": stats["out"]}
    shown = {name: group["exposure"] for name, group in groups.items() if group["canaries"]}
    fig = Figure(figsize=(WIDTH_INCHES, 2.6), layout="constrained")
    ax = fig.subplots()
    for place, (name, found) in enumerate(shown.items()):
        colour = MUTED if name == "out" else ACCENT
        reach = [[max(0.0, found["value"] - found["low"])], [max(0.0, found["high"] - found["value"])]]
        ax.errorbar(place, found["value"], yerr=reach, fmt="o", color=colour, capsize=3)
    ax.axhline(UNSEEN, color=MUTED, linestyle=":", label="never seen")
    ax.axhline(math.log2(stats["references"]), color=MUTED, linestyle="--", label="below all references")
    ax.set_xticks(range(len(shown)), ["not planted" if name == "out" else f"{name} times" for name in shown])
    ax.set_ylabel("exposure, bits")
    ax.grid(axis="y")
    ax.legend(fontsize=8)
    return fig


def _cells(group: Mapping[str, Any]) -> list[Any]:
    """Canaries, copies seen, exposure with interval, median, fitted median; dashes for a group without canaries."""
    if not group["canaries"]:
        return [0, *["-"] * 6]
    found = group["exposure"]
    return [
        group["canaries"], group["seen"], found["value"], found["low"], found["high"], group["median"], group["fitted"],
    ]  # fmt: skip
