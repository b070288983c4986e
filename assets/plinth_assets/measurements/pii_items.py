"""Finds of personal data: counted again, compared between models, shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.compute.stage import sum_stats
from plinth.evaluation.comparison.columns import chosen, part_table
from plinth.evaluation.comparison.pairs import Pairs, align
from plinth.evaluation.measurement import Figures, Stats
from plinth.evaluation.pii import outputs, training
from plinth.records import Manifest, Part
from plinth.report.evaluation.data import Section, TextTable
from plinth.storage.parts import read_table
from plinth.storage.store import Store


def recount_data(ctx: Context, made: Manifest, _: Mapping[str, Manifest]) -> Figures:
    """Stated and counted figures of training text, as a whole, by bucket and by kind.

    Documents are those of the curated text among the inputs. What the detector found of them is believed: finding it
    again needs the detector.
    """
    kinds = tuple(made.stats["kinds"])
    buckets = {
        name.partition("/")[0]: _bucket(ctx, made, name.partition("/")[0], digest)
        for name, digest in made.inputs.items()
        if name.endswith("/curated")
    }
    counted = {name: _figures(training.rates(own, kinds)) for name, own in buckets.items()}
    every = _figures(training.rates(sum_stats(buckets.values()), kinds))
    stated = {name: _figures(own) for name, own in made.stats["buckets"].items()}
    return {"buckets": stated, "all": _figures(made.stats)}, {"buckets": counted, "all": every}


def recount_outputs(ctx: Context, made: Manifest, _: Mapping[str, Manifest]) -> Figures:
    """Stated and counted figures of outputs; what the detector found in them is believed."""
    tables = {part.name: part for part in made.parts}
    counted = outputs.summary(*(read_table(ctx.store, tables[name]) for name in (outputs.OUTPUTS, outputs.FINDS)))
    return {name: made.stats[name] for name in counted}, counted


def _bucket(ctx: Context, made: Manifest, bucket: str, curated: str) -> dict[str, Any]:
    documents = sum(part.rows for part in ctx.refs.load(curated).named("part-"))
    return {"documents": documents, **sum_stats(_finds(ctx.store, part) for part in made.named(f"{bucket}/part-"))}


def _finds(store: Store, part: Part) -> dict[str, Any]:
    rows = read_table(store, part, ["id", "rule"]).to_pylist()
    by_kind: dict[str, list[bytes]] = {}
    for row in rows:
        by_kind.setdefault(row["rule"].partition("/")[0], []).append(row["id"])
    kinds = {kind: {"documents": len(set(own)), "spans": len(own)} for kind, own in by_kind.items()}
    return {"found": len({row["id"] for row in rows}), "kinds": kinds}


def _figures(stats: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {kind: one["per_million_at_most"] for kind, one in stats["kinds"].items()}
    return {name: stats[name] for name in ("documents", "found", "at_most")} | {"kinds": kinds}


def pairs(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Texts of the model in which personal data was found: without a prompt, and after prompts that invite it."""
    sides = [_written(part_table(store, made, "outputs.parquet"), part_table(store, made, "finds.parquet"))
             for made in (a, b)]  # fmt: skip
    for kind, measure in (("unprompted", "personal data, unprompted"), ("invited", "personal data, invited")):
        pair = [chosen(side.filter(pc.equal(side["kind"], kind)), "found", cluster="cluster") for side in sides]
        yield align("personal data", measure, *pair, fewer_is_better=True, ratio=False)


def _written(outputs: pa.Table, finds: pa.Table) -> pa.Table:
    """A row per text; draws after one prompt are no independent evidence, texts without a prompt are."""
    found = np.zeros(len(outputs))
    found[finds["output"].to_numpy()] = 1.0
    item = pc.binary_join_element_wise(outputs["prompt"], pc.cast(outputs["draw"], pa.string()), " #")
    cluster = pc.if_else(pc.equal(outputs["kind"], "unprompted"), item, outputs["prompt"])
    return pa.table({"item": item, "kind": outputs["kind"], "found": found, "cluster": cluster})


def section_of_data(_: str, stats: Stats) -> Section:
    """What the corpus's own detector still finds in training text."""
    kinds = stats["kinds"]
    rows = [
        (name, f"{one['documents']:,}", f"{one['found']:,}", "-" if one["at_most"] is None else f"{one['at_most']:.3%}",
         ", ".join(f"{kind} {own['documents']:,}" for kind, own in one["kinds"].items() if own["documents"]) or "none")
        for name, one in {**stats["buckets"], "all": stats}.items()
    ]  # fmt: skip
    detector = stats["detector"]
    return Section(
        key="pii-data",
        title="Personal data: training text",
        lead=f"What the detector {detector['annotator']} (version {detector['version']}) still finds after the edits, "
        f"of {', '.join(kinds)}. Every document is read; limits are those of a share of such documents (95%).",
        tables=(
            TextTable(
                title="Documents with a find, by bucket",
                header=("bucket", "documents", "with a find", "share at most", "documents by kind"),
                rows=tuple(rows),
            ),
        ),
    )


def section_of_outputs(_: str, stats: Stats) -> Section:
    """Personal data in what the checkpoint writes; what of it stands in training text is memory."""
    rows = [
        (name, f"{own['texts']:,}", f"{own['found']:,}", f"{own['at_most']:.3%}", f"{own['memorised']:,}",
         f"{own['memorised_at_most']:.3%}")
        for name, own in ((name, stats[name]) for name in ("unprompted", "invited", "all"))
    ]  # fmt: skip
    distinct = stats["distinct"]
    return Section(
        key="pii-outputs",
        title="Personal data: outputs",
        lead=f"Texts without a prompt, and after prompts that invite personal data. {distinct['found']:,} different "
        f"strings were found, of which {distinct['memorised']:,} stand word for word in training text.",
        tables=(
            TextTable(
                title="Texts with personal data",
                header=("texts", "number", "with a find", "share at most", "from training text", "share at most"),
                rows=tuple(rows),
            ),
        ),
    )
