"""The asset `pii/data`: personal data that is left in the checkpoint's training text. The numbers of findings can be
recomputed and are shown on the evaluation page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plinth.compute.context import Context, sum_stats
from plinth.evaluation import pii
from plinth.evaluation.measurement import Figures, Stats
from plinth.evaluation.pii import PiiDetector
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest, Part
from plinth.report.evaluation import Section, TextTable
from plinth.storage.parts import read_table
from plinth.storage.store import Store
from plinth_assets.annotate import annotator_parameters
from plinth_assets.framework import Inputs, Stage, Suite, between, by_bucket, each, shared_owner
from plinth_assets.framework.present import markdown, table


def stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that counts personal data in training text, if the checkpoint may be released."""
    if recipe.release is None:
        return []
    return [
        Stage(
            asset=pii.ASSET,
            deps=("checkpoint", *each(recipe, "curated"), *pii.needs(detector_given(recipe))),
            make=lambda ctx, inputs, _: pii.run(
                ctx, inputs["checkpoint"], by_bucket(recipe, inputs, "curated"), detector_of(recipe, inputs)
            ),
            version=pii.VERSION,
            params=detector_facts(recipe),
            libraries=PiiDetector(detector_given(recipe), {}).libraries,
            group="evaluation",
            description="Rates of personal data left in curated training text, as found by the corpus's own detector, "
            "by bucket and kind, with upper bounds.",
            owner=shared_owner(recipe),
            kinds=("parquet",),
            schema=pii.SCHEMA,
            suite=_suite,
            present=_present,
        )
    ]


def detector_facts(recipe: Recipe) -> dict[str, Any]:
    """Return the parameters of the personal data detector that affect its findings."""
    known = PiiDetector(detector_given(recipe), {})
    return {"detector": known.facts, "written": sorted(known.written)}


def detector_given(recipe: Recipe) -> dict[str, Any]:
    """Return the parameters of the personal data detector as written in the recipe."""
    return annotator_parameters(recipe).get(pii.NAME, {})


def detector_of(recipe: Recipe, inputs: Inputs) -> PiiDetector:
    """Return the recipe's personal data detector with the resources that it reads."""
    given = detector_given(recipe)
    return PiiDetector(given, {key: inputs[key] for key in pii.needs(given)})


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    rows = [{"documents": one["documents"], "found": one["found"]} for one in made.stats["buckets"].values()]
    expectations = [between("documents", 1, None, "warning"), between("found", 0, 0, "warning")]
    return Suite(pii.ASSET.replace("/", "-"), rows, expectations)


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    kinds = [kind for kind in made.stats["kinds"] if made.stats["kinds"][kind]["documents"]]
    header = ["bucket", "documents", "with findings", "per million", "upper bound", *kinds]
    every = {**made.stats["buckets"], "all": made.stats}
    rows = [
        [name, *(_cell(one[key]) for key in ("documents", "found", "per_million", "at_most"))]
        + [one["kinds"][kind]["documents"] for kind in kinds]
        for name, one in every.items()
    ]
    return {"residual": markdown(table(header, rows)), "found": int(made.stats["found"])}


def _cell(value: Any) -> Any:
    return "-" if value is None else value


def recount(ctx: Context, made: Manifest, _: Mapping[str, Manifest]) -> Figures:
    """Return the stated and the recomputed numbers of documents with personal data in training text: overall, by bucket
    and by kind.

    The recomputed number of documents comes from the curated text among the inputs. The detector's findings are
    trusted, because a recomputation needs the detector.
    """
    kinds = tuple(made.stats["kinds"])
    buckets = {
        name.partition("/")[0]: _bucket(ctx, made, name.partition("/")[0], digest)
        for name, digest in made.inputs.items()
        if name.endswith("/curated")
    }
    counted = {name: _figures(pii.rates(own, kinds)) for name, own in buckets.items()}
    every = _figures(pii.rates(sum_stats(buckets.values()), kinds))
    stated = {name: _figures(own) for name, own in made.stats["buckets"].items()}
    return {"buckets": stated, "all": _figures(made.stats)}, {"buckets": counted, "all": every}


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


def section(_: str, stats: Stats) -> Section:
    """Build the section about personal data that the corpus's own detector still finds in the training text."""
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
        lead=f"Findings of the detector {detector['annotator']} (version {detector['version']}) after edits: "
        f"{', '.join(kinds)}. Every document is read; upper bounds (95%) apply to the share of documents with a "
        "finding.",
        tables=(
            TextTable(
                title="Documents with findings, by bucket",
                header=("bucket", "documents", "with findings", "upper bound", "documents by kind"),
                rows=tuple(rows),
            ),
        ),
    )
