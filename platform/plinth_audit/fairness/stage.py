"""The stage `fairness`, and its items: recomputed, compared between two models, shown on the evaluation page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth import sections
from plinth.compute.context import Context
from plinth.corpus import annotate
from plinth.evaluation.comparison.pairs import Pairs, align, chosen, labelled, part_table
from plinth.evaluation.engine.records import Request
from plinth.evaluation.measurement import Figures, Stats
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.report.evaluation import Section, group, measure
from plinth.storage.parts import named_table
from plinth.storage.store import Store
from plinth.text import counted
from plinth_assets.annotate import annotator_parameters
from plinth_assets.framework.expectations import Suite, between
from plinth_assets.framework.inputs import shared_owner
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage
from plinth_audit.fairness import bias, job
from plinth_audit.fairness.job import ANNOTATOR, ToxicityJudge
from plinth_audit.fairness.pairs import Pair
from plinth_audit.fairness.parameters import Fairness


def stages(recipe: Recipe) -> list[Stage]:
    """One measurement per checkpoint, where the recipe asks for it."""
    params = sections.of(recipe.evaluation, "fairness", Fairness)
    if params is None:
        return []
    return [
        Stage(
            asset=job.ASSET,
            deps=("checkpoint", *_resources(recipe)),
            make=partial(_make, recipe, params),
            outside=partial(job.outside, params) if params.pairs else None,
            version=job.VERSION,
            params=params.model_dump(mode="json") | {"judge": annotator_parameters(recipe).get(ANNOTATOR)},
            group="evaluation",
            description="Counterfactual pairs by attribute; toxicity of continuations by the corpus's own annotator.",
            owner=shared_owner(recipe),
            kinds=("pytorch", "parquet"),
            schema=job.SCHEMA,
            suite=_suite,
            present=_present,
            pool="training",
        )
    ]


def _resources(recipe: Recipe) -> tuple[str, ...]:
    """Lists and models of the recipe's annotator of toxicity."""
    params = annotator_parameters(recipe).get(ANNOTATOR)
    if params is None:
        return ()
    return annotate.annotator(ANNOTATOR).needs(annotate.parameters(ANNOTATOR, params))


def _make(recipe: Recipe, params: Fairness, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    given = annotator_parameters(recipe).get(ANNOTATOR)
    judge = None if given is None else ToxicityJudge(given, {key: inputs[key] for key in _resources(recipe)})
    return job.run(ctx, params, inputs["checkpoint"], judge)


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    rows = [{"pairs": one["n"], "templates": one["clusters"]} for one in made.stats["attributes"].values()]
    return Suite(job.ASSET, rows, [between("pairs", 1, None), between("templates", 2, None, "warning")])


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    header = ["attribute", "favours a by, bits", "from", "to", "corrected p", "found", "smallest effect", "pairs"]
    names = ("value", "low", "high", "p_adjusted", "found", "smallest_effect", "n")
    rows = [[name, *(_cell(one[key]) for key in names)] for name, one in made.stats["attributes"].items()]
    shown: dict[str, Any] = {"attributes": markdown(table(header, rows))}
    if made.stats["toxicity"] is not None:
        shown["toxic_share"] = float(made.stats["toxicity"]["toxic"]["value"])
        shown["toxic_share_at_most"] = float(made.stats["toxicity"]["toxic_at_most"])
    return shown


def _cell(value: Any) -> Any:
    return "-" if value is None else ("yes" if value else "no") if isinstance(value, bool) else value


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
        counted["toxicity"] = _toxic(job.toxicity(named_table(ctx.store, made, job.CONTINUATIONS)))
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
