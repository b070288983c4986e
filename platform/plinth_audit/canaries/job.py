"""Exposure of planted canaries at a checkpoint.

The engine returns the loss in bits of every canary and reference text. Ranks, exposures, the p-value and the bound on
epsilon are computed from these losses and from the record of which canaries were planted. An intermediate checkpoint
was trained on only some of the planted copies: `seen` counts the copies in steps that were trained and not skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plinth.compute import context
from plinth.compute.context import Context
from plinth.corpus import planted_canaries
from plinth.corpus.canaries import BUCKET as CANARIES
from plinth.evaluation import statistics
from plinth.evaluation.comparison.pairs import Pairs, align, chosen, labelled, part_table
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.measurement import Figures, Stats
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest, Part, Step
from plinth.report.evaluation import Section, group, measure
from plinth.report.style import ACCENT, MUTED, WIDTH_INCHES
from plinth.storage.parts import named_table, read_table, write_table
from plinth.storage.store import Store
from plinth.text import counted
from plinth.tokens.order.batch import draws, seen_through
from plinth.training import config
from plinth_assets.framework import Inputs, Say, Stage, Suite, between, planted, present, shared_owner
from plinth_assets.framework.present import markdown, picture
from plinth_audit.canaries import audit
from plinth_audit.canaries.audit import ALL_PLANTED, PLANTED_TIMES, p_value_of_group

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ASSET = "memorisation/canaries"
VERSION = "2"
TABLE = "canaries.parquet"

SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),  # canary, reference
        pa.field("number", pa.int32(), nullable=False),
        pa.field("repetitions", pa.int32(), nullable=False),
        pa.field("planted", pa.bool_(), nullable=False),
        pa.field("seen", pa.int32(), nullable=False),  # copies in the training data of the checkpoint
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("bits", pa.float64(), nullable=False),
        pa.field("rank", pa.int64()),  # 1 + references with at most as many bits; null for a reference
        pa.field("exposure", pa.float64()),  # bits, by rank
        pa.field("fitted_exposure", pa.float64()),  # the same, with a fitted tail beyond all references
    ]
)


def run(ctx: Context, checkpoint: Manifest, canaries: Manifest, seen: Mapping[int, int]) -> Manifest:
    """Measure the canary exposure of a checkpoint.

    The part `canaries.parquet` of the manifest has one row per canary and reference (`SCHEMA`).

    Args:
        seen: number of copies of each canary that the checkpoint was trained on (`draws.seen_through`).

    Stats: `groups` by repetitions (canaries, seen, exposure with interval, `fitted` and `least` exposure), `out` (the
    same for canaries that were not planted), `p_value` over all planted canaries, `audit` (guesses, right, epsilon,
    level), `canaries`, `planted`, `references`, `seed`.

    Raises:
        TrainingError: the checkpoint cannot be scored.
    """
    part = measured(ctx, ModelEngine.of(ctx, checkpoint, label=ASSET), checkpoint.digest, canaries, seen)
    stats = summary(read_table(ctx.store, part)) | {"seed": canaries.stats["seed"]}
    return context.manifest(ASSET, _step(seen), {"checkpoint": checkpoint, canaries.asset: canaries}, [part], stats)


def measured(ctx: Context, engine: ModelEngine, model: str, canaries: Manifest, seen: Mapping[int, int]) -> Part:
    """Return the canary table of a model (`SCHEMA`), from the cache if the model was measured before.

    Args:
        model: digest of the engine's model.

    Raises:
        TrainingError, CheckpointError: the model cannot be scored.
    """
    return context.cached(ctx, _step(seen), [model, canaries], lambda: [_scored(ctx, engine, canaries, seen)])[0]


def _step(seen: Mapping[int, int]) -> Step:
    return Step(name=ASSET, version=VERSION, params={"seen": {str(n): count for n, count in sorted(seen.items())}})


def table(given: pa.Table, bits: NDArray[np.float64], tokens: NDArray[np.int64], seen: Mapping[int, int]) -> pa.Table:
    """Return rows of `SCHEMA`: the table of planted canaries (`planted_canaries.SCHEMA`) together with their scores."""
    canary = np.array(given["kind"].to_pylist()) == "canary"
    own, references = bits[canary], bits[~canary]
    ranks = audit.ranks(own, references)
    of_canaries = {
        "rank": ranks,
        "exposure": audit.exposures(ranks, len(references)),
        "fitted_exposure": audit.extended(own, references),
    }
    at = pa.array(np.where(canary, np.cumsum(canary) - 1, 0), mask=~canary)
    columns = {name: given[name] for name in ("kind", "number", "repetitions", "planted")}
    numbers = zip(given["number"].to_pylist(), canary.tolist(), strict=True)
    columns["seen"] = pa.array([seen.get(n, 0) if is_canary else 0 for n, is_canary in numbers], pa.int32())
    columns |= {"tokens": pa.array(tokens), "bits": pa.array(bits)}
    columns |= {name: pa.array(values).take(at) for name, values in of_canaries.items()}
    return pa.table(columns, schema=SCHEMA)


def summary(scored: pa.Table) -> dict[str, Any]:
    """Return canary statistics from a table of scored canaries: exposure by repetitions, p-value, audit and counts."""
    own = scored.filter(pa.compute.equal(scored["kind"], "canary"))
    planted = own["planted"].to_numpy()
    repetitions, ranks = own["repetitions"].to_numpy(), own["rank"].to_numpy()
    references = scored.num_rows - own.num_rows
    guessed = audit.guesses(ranks, repetitions, references)
    inside = own.filter(own["planted"])
    return {
        "groups": {
            str(n): _group(inside.filter(pa.compute.equal(inside["repetitions"], n)))
            for n in sorted(set(inside["repetitions"].to_pylist()))
        },
        "out": _group(own.filter(pa.compute.invert(own["planted"]))),
        "p_value": audit.exposure_p_value(inside["exposure"].to_numpy()),
        "audit": audit.audit(guessed, planted).model_dump(mode="json"),
        "canaries": own.num_rows,
        "planted": inside.num_rows,
        "references": references,
    }


def _group(rows: pa.Table) -> dict[str, Any]:
    """Return the exposure of a group of canaries in bits, with its confidence interval."""
    if not rows.num_rows:
        return {"canaries": 0}
    found, fitted = rows["exposure"].to_numpy(), rows["fitted_exposure"].to_numpy()
    return {
        "canaries": rows.num_rows,
        "seen": int(rows["seen"].to_numpy().sum()),
        "exposure": statistics.mean(found).model_dump(mode="json"),
        "median": float(np.median(found)),
        "least": float(found.min()),
        "fitted": float(np.median(fitted)),
    }


def _scored(ctx: Context, engine: ModelEngine, canaries: Manifest, seen: Mapping[int, int]) -> Part:
    given = planted_canaries.table(ctx.store, canaries)
    with engine:
        scores = engine.documents(given["text"].to_pylist())
    return write_table(ctx.store, TABLE, table(given, scores.bits, scores.tokens, seen))


#: Expected exposure of a text that the model never saw, in bits.
UNSEEN = 1 / math.log(2)


def stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that measures canary exposure, or no stage if the recipe plants no canaries."""
    if recipe.corpus.canaries is None:
        return []
    return [
        Stage(
            asset=ASSET,
            deps=("checkpoint", "run", "mixture", *planted(recipe, "curated", "shards")),
            make=partial(_make, recipe),
            version=VERSION,
            params={},
            group="evaluation",
            description="Canary exposure by number of repetitions, a p-value over all canaries, and a lower bound on "
            "epsilon.",
            owner=shared_owner(recipe),
            kinds=("pytorch",),
            schema=SCHEMA,
            suite=_suite,
            present=_present,
            pool="training",
        )
    ]


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    texts, shards = inputs[f"{CANARIES}/curated"], inputs[f"{CANARIES}/shards"]
    trained = inputs.get("run")
    if trained is None:  # external weights, or a run on other shards: the model never saw these texts
        return run(ctx, inputs["checkpoint"], texts, {})
    steps = config.load(ctx.workspace.runs / trained.stats["run_id"] / "config.json").steps
    copies = draws(ctx, inputs["mixture"], shards, texts, steps)
    seen = seen_through(copies, int(inputs["checkpoint"].stats["step"]), trained.stats["skipped_steps"])
    return run(ctx, inputs["checkpoint"], texts, seen)


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    """Return the checks of the asset, which require planted canaries, excluded canaries and references."""
    stats = made.stats
    row = {"planted": stats["planted"], "out": stats["canaries"] - stats["planted"], "references": stats["references"]}
    expectations = [between("planted", 1, None), between("out", 1, None), between("references", 128, None)]
    return Suite("memorisation-canaries", [row], expectations)


def _p_value(group: Mapping[str, Any]) -> str:
    return f"{p_value_of_group(group):.2g}" if group["canaries"] else "-"


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    header = ["repetitions", "canaries", "copies seen", "exposure (bits)", "from", "to", "median", "fitted median",
              "p-value"]  # fmt: skip
    groups = {**made.stats["groups"], "not planted": made.stats["out"]}
    rows = [[name, *_cells(group), _p_value(group)] for name, group in groups.items()]
    audit = made.stats["audit"]
    return {
        "exposure_by_repetitions": picture(figure, made.stats),
        "exposure": markdown(present.table(header, rows)),
        "p_value_all_planted": float(made.stats["p_value"]),
        "epsilon_at_least": float(audit["epsilon"]),
        "membership_inference_correct": f"{audit['right']} of {audit['guesses']}",
    }


def recount(ctx: Context, made: Manifest, _: Mapping[str, Manifest]) -> Figures:
    table = named_table(ctx.store, made, TABLE)
    canary = pc.equal(table["kind"], "canary")
    own, references = table.filter(canary), table.filter(pc.invert(canary))["bits"].to_numpy()
    ranks = audit.ranks(own["bits"].to_numpy(), references)
    wrong = int((ranks != own["rank"].to_numpy()).sum())
    wrong += int((~np.isclose(audit.exposures(ranks, len(references)), own["exposure"].to_numpy())).sum())
    counted = _exposed(summary(table)) | {"wrong ranks": wrong}
    return _exposed(made.stats) | {"wrong ranks": 0}, counted


def _exposed(stats: Mapping[str, Any]) -> dict[str, Any]:
    groups = {
        name: {"canaries": one["canaries"], **{key: one["exposure"][key] for key in ("n", "value")}}
        for name, one in stats["groups"].items()
        if one["canaries"]
    }
    return {"planted": stats["planted"], "groups": groups, "epsilon": stats["audit"]["epsilon"]}


def pairs(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Yield the exposures of two models paired by canary, for planted canaries (by repetitions) and for excluded ones.

    Raises:
        IntegrityError: the two models have different canaries.
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
    """Return the page section on canary exposure, by number of repetitions."""
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
        title="Memorization: canaries",
        lead=f"{stats['planted']:,} generated texts were randomly included in the training text; "
        f"{stats['references']:,} reference texts were not. {ALL_PLANTED}: {stats['p_value']:.2g}. {by_count}. "
        f"Membership inference: {audit['right']}/{audit['guesses']} guesses correct; epsilon ≥ {audit['epsilon']:.2f}.",
        groups=(group("Exposure by repetitions", "bits", "lower", "never seen", measures),),
    )


def figure(stats: Mapping[str, Any]) -> Figure:
    """Plot the mean exposure with its interval, by repetitions, next to the expected exposure of unseen text."""
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
    """Return the table cells for a group of canaries: counts, mean exposure with interval, median exposures.

    A group without canaries gets dashes.
    """
    if not group["canaries"]:
        return [0, *["-"] * 6]
    found = group["exposure"]
    return [
        group["canaries"], group["seen"], found["value"], found["low"], found["high"], group["median"], group["fitted"],
    ]  # fmt: skip
