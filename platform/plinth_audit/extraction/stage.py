"""The stage `memorisation/extraction`, and its items: recomputed, compared between two models, shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth import sections
from plinth.compute.context import Context
from plinth.corpus import lists
from plinth.evaluation.comparison.pairs import Pairs, align, labelled, part_table
from plinth.evaluation.measurement import Figures, Stats
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.report.evaluation import Section, TextTable, group, measure
from plinth.storage.parts import named_table
from plinth.storage.store import Store
from plinth.training import config
from plinth_assets.framework.expectations import Suite, between
from plinth_assets.framework.inputs import by_bucket, each, shared_owner
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage
from plinth_audit.extraction import extraction
from plinth_audit.extraction.parameters import ExtractionTest
from plinth_audit.extraction.windows import Taken


def stages(recipe: Recipe) -> list[Stage]:
    """One test per checkpoint, where the recipe asks for it."""
    params = sections.of(recipe.evaluation, "extraction", ExtractionTest)
    if params is None:
        return []
    return [
        Stage(
            asset=extraction.ASSET,
            deps=("checkpoint", "run", "mixture", "tokenizer", "ledger", *each(recipe, "curated", "shards")),
            make=partial(_make, recipe, params),
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


def _make(recipe: Recipe, params: ExtractionTest, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
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


def recount(ctx: Context, made: Manifest, _: Mapping[str, Manifest]) -> Figures:
    table = named_table(ctx.store, made, extraction.TABLE)
    near = float(made.params["near_edits"])
    windows = zip(table["suffix"].to_pylist(), table["completion"].to_pylist(), strict=True)
    outcomes = pa.array([extraction.outcome(suffix, written, near)[1] for suffix, written in windows], pa.string())
    judged = table.set_column(table.schema.get_field_index("outcome"), "outcome", outcomes)
    counted = extraction.summary(judged, list(made.stats["slices"]))["slices"]
    return _limits(made.stats["slices"]), _limits(counted)


def _limits(slices: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {"n": own["n"], **({key: own["either"][key] for key in ("count", "upper")} if own["n"] else {})}
        for name, own in slices.items()
    }


def pairs(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Share of windows of text that the model continues, document by document: of training text and of held-out text.

    Windows that only one model was asked for, because only it was trained on them, have no pair.
    """
    sides = [part_table(store, made, "extraction.parquet") for made in (a, b)]
    for heldout, text in ((False, "training text"), (True, "held-out text")):
        rows = [side.filter(pc.equal(side["heldout"], heldout)) for side in sides]
        for what, outcomes in (("exactly", ("exact",)), ("exactly or nearly", ("exact", "near"))):
            pair = [_windows(side, outcomes) for side in rows]
            yield align("memorisation", f"{text} continued {what}", *pair, fewer_is_better=True, ratio=False)


def _windows(table: pa.Table, outcomes: tuple[str, ...]) -> pa.Table:
    """A row per window, which stands in the table once for each of its slices."""
    item = pc.binary_join_element_wise(table["bucket"], table["id"], pc.cast(table["offset"], pa.string()), "/")
    rows = pa.table({"item": item, "slice": table["slice"], "outcome": table["outcome"]}).sort_by(
        [("item", "ascending"), ("slice", "ascending")]
    )
    if not len(rows):
        return pa.table({"item": pa.array([], pa.string()), "value": pa.array([], pa.float64())})
    names = rows["item"].combine_chunks()
    first = np.concatenate([[True], pc.not_equal(names[1:], names[:-1]).to_numpy(zero_copy_only=False)])
    starts = np.flatnonzero(first)
    labels = labelled(rows, {"slice": "slice"}).flatten()
    offsets = pa.array(np.concatenate([starts, [len(rows)]]), pa.int32())
    continued = pc.is_in(rows["outcome"], value_set=pa.array(outcomes)).take(pa.array(starts))
    return pa.table(
        {
            "item": names.take(pa.array(starts)),
            "value": pc.cast(continued, pa.float64()),
            "slices": pa.ListArray.from_arrays(offsets, labels),
        }
    )


def section(_: str, stats: Stats) -> Section:
    """How much text of risk the checkpoint continues word for word, beside text that it never saw."""
    asked = {name: own for name, own in stats["slices"].items() if own["n"]}
    measures = [
        measure(name, own["either"], reference=own["control"]["either"]["value"] if own["control"] else None)
        for name, own in asked.items()
    ]
    rows = [
        (name, f"{own['n']:,}", f"{own['exact']['count']:,}", f"{own['near']['count']:,}",
         f"{own['either']['upper']:.3%}", f"{own.get('excess_at_least') or 0.0:.3%}")
        for name, own in asked.items()
    ]  # fmt: skip
    header = ("slice", "documents", "exact", "near", "either, at most", "above held-out text, at least")
    return Section(
        key="extraction",
        title="Memorisation: extraction",
        lead=f"{stats['prefix_tokens']} tokens of a training document are given; counted is where the model writes the "
        f"next {stats['suffix_tokens']}, exactly or with at most a tenth edited. Held-out text is the control.",
        groups=(group("Share continued", "share", "lower", "held out", measures),) if measures else (),
        tables=(TextTable(title="Counts and limits", header=header, rows=tuple(rows)),) if rows else (),
    )
