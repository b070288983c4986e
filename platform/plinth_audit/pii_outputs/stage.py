"""The stage `pii/outputs`, and its items: recomputed, compared between two models, shown on the evaluation page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth import sections
from plinth.compute.context import Context
from plinth.evaluation.comparison.pairs import Pairs, align, chosen, part_table
from plinth.evaluation.measurement import Figures, Stats
from plinth.evaluation.pii import PiiDetector, needs
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.report.evaluation import Section, TextTable
from plinth.storage.parts import read_table
from plinth.storage.store import Store
from plinth_assets.framework.expectations import Suite, between
from plinth_assets.framework.inputs import by_bucket, each, shared_owner
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage
from plinth_assets.pii import detector_facts, detector_given, detector_of
from plinth_audit.pii_outputs import outputs, parameters
from plinth_audit.pii_outputs.parameters import PiiOutputs


def stages(recipe: Recipe) -> list[Stage]:
    """One search in outputs per checkpoint, where the recipe asks for it."""
    params = sections.of(recipe.evaluation, "pii_outputs", PiiOutputs)
    if params is None:
        return []
    return [
        Stage(
            asset=outputs.ASSET,
            deps=("checkpoint", *each(recipe, "curated"), *needs(detector_given(recipe))),
            make=partial(_make, recipe, params),
            version=outputs.VERSION,
            params=detector_facts(recipe) | params.model_dump(mode="json"),
            libraries=PiiDetector(detector_given(recipe), {}).libraries,
            group="evaluation",
            description=f"Personal data in {params.samples} texts without a prompt and after prompts that invite it; "
            "what of it stands in training text.",
            owner=shared_owner(recipe),
            kinds=("pytorch", "parquet"),
            schema=outputs.SCHEMA,
            suite=_suite,
            present=_present,
            pool="training",
        )
    ]


def _make(recipe: Recipe, params: PiiOutputs, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    curated = by_bucket(recipe, inputs, "curated")
    return outputs.run(ctx, params, inputs["checkpoint"], curated, detector_of(recipe, inputs))


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    groups = (parameters.UNPROMPTED, parameters.INVITED)
    rows = [{"texts": made.stats[name]["texts"], "memorised": made.stats[name]["memorised"]} for name in groups]
    expectations = [between("texts", 1, None), between("memorised", 0, 0, "warning")]
    return Suite(outputs.ASSET.replace("/", "-"), rows, expectations)


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    header = ["texts of", "number", "with personal data", "at most", "of training text", "at most"]
    names = ("texts", "found", "at_most", "memorised", "memorised_at_most")
    groups = (parameters.UNPROMPTED, parameters.INVITED, parameters.ALL)
    rows = [[group, *(_cell(made.stats[group][name]) for name in names)] for group in groups]
    distinct = made.stats["distinct"]
    return {
        "outputs": markdown(table(header, rows)),
        "different_strings": f"{distinct['found']}, of which {distinct['memorised']} stand in training text",
    }


def _cell(value: Any) -> Any:
    return "-" if value is None else value


def recount(ctx: Context, made: Manifest, _: Mapping[str, Manifest]) -> Figures:
    """Stated and counted figures of outputs; what the detector found in them is believed."""
    tables = {part.name: part for part in made.parts}
    counted = outputs.summary(*(read_table(ctx.store, tables[name]) for name in (outputs.OUTPUTS, outputs.FINDS)))
    return {name: made.stats[name] for name in counted}, counted


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


def section(_: str, stats: Stats) -> Section:
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
