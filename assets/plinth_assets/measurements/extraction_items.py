"""Windows of training text: counted again, compared between models, shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.evaluation.comparison.columns import part_table
from plinth.evaluation.comparison.pairs import Pairs, align, labelled
from plinth.evaluation.measurement import Figures, Stats
from plinth.evaluation.memorisation import extraction
from plinth.records import Manifest
from plinth.report.evaluation.data import Section, TextTable
from plinth.report.evaluation.sections import group, measure
from plinth.storage.parts import named_table
from plinth.storage.store import Store


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
