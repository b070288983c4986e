"""Pairs of groups and continuations: counted again, compared between models, shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.evaluation.comparison.columns import chosen, part_table
from plinth.evaluation.comparison.pairs import Pairs, align, labelled
from plinth.evaluation.engine.records import Request
from plinth.evaluation.fairness import bias, job, toxicity
from plinth.evaluation.fairness.pairs import Pair
from plinth.evaluation.measurement import Figures, Stats
from plinth.records import Manifest
from plinth.report.evaluation.data import Section
from plinth.report.evaluation.sections import group, measure
from plinth.storage.parts import named_table
from plinth.storage.store import Store
from plinth.text.plural import counted


def recount(ctx: Context, made: Manifest, _: Mapping[str, Manifest]) -> Figures:
    rows = named_table(ctx.store, made, job.PAIRS).to_pylist()
    names = ("set", "item", "attribute", "template", "favourable")
    texts = [Pair(**{name: row[name] for name in names}, a=Request("", ""), b=Request("", "")) for row in rows]
    bits = np.array([row[side] for row in rows for side in ("bits_a", "bits_b")])
    attributes, judged = bias.by_attribute(texts, bias.values(texts, bits)), made.stats["toxicity"]
    counted = {"attributes": _ends(attributes)}
    stated = {"attributes": _ends(made.stats["attributes"])}
    if judged is not None:
        stated["toxicity"] = _toxic(judged)
        counted["toxicity"] = _toxic(toxicity.summary(named_table(ctx.store, made, job.CONTINUATIONS)))
    return stated, counted


def _ends(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {key: one[key] for key in ("n", "low", "high")} for name, one in attributes.items()}


def _toxic(stats: Mapping[str, Any]) -> dict[str, Any]:
    return {"n": stats["toxic"]["n"], "toxic_at_most": stats["toxic_at_most"]}


def pairs(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """How far groups are apart in bits, whichever is favoured, pair by pair and by template; toxicity by prompt."""
    sides = [_counterfactuals(part_table(store, made, "pairs.parquet")) for made in (a, b)]
    yield align("fairness", "bits between groups", *sides, fewer_is_better=True, ratio=False)
    written = [part_table(store, made, "continuations.parquet") for made in (a, b)]
    if known := [side for side in written if len(side)]:
        scores = [_continuations(side if len(side) else known[0].slice(0, 0)) for side in written]
        yield align("fairness", "toxicity of continuations", *scores, fewer_is_better=True, ratio=False)


def _counterfactuals(table: pa.Table) -> pa.Table:
    own = pc.binary_join_element_wise(table["set"], table["attribute"], "/")
    attribute = pc.if_else(pc.equal(table["set"], "built_in"), table["attribute"], own)
    named = pa.table({"item": pc.binary_join_element_wise(table["set"], table["item"], "/"), "attribute": attribute,
                      "apart": pc.abs(table["favoured"]), "template": table["template"]})  # fmt: skip
    return chosen(named, "apart", cluster="template", slices=labelled(named, {"attribute": "attribute"}))


def _continuations(table: pa.Table) -> pa.Table:
    item = pc.binary_join_element_wise(table["prompt"], pc.cast(table["draw"], pa.string()), " #")
    return chosen(table.append_column("item", item), "score", cluster="prompt")


def section(_: str, stats: Stats) -> Section:
    """By how much the model favours one group of each attribute; toxicity of what it writes."""
    found = [name for name, row in stats["attributes"].items() if row["found"]]
    measures = [measure(name, row, reference=0.0) for name, row in stats["attributes"].items()]
    bias = f"The model favors a group in {', '.join(found)}" if found else "No significant bias was detected"
    toxic = stats["toxicity"]
    judged = "" if toxic is None else f" Of its continuations at most {toxic['toxic_at_most']:.1%} are toxic (95%)."
    return Section(
        key="fairness",
        title="Bias and safety",
        lead=f"{counted(stats['pairs'], 'pair')} of texts in which only the group differs. {bias}, corrected for "
        f"all attributes.{judged}",
        groups=(group("Favour of the first group", "bits", "lower", "treated alike", measures),),
    )
