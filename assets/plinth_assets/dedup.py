"""Deduplication over all buckets, which keeps one document of each cluster. The assets are `dedup/exact`,
`{bucket}/minhash`, `dedup/index` and `dedup/minhash`. If the recipe enables them, `dedup/semantic`, `dedup/lines` and
`dedup/substring` follow. Each stage reads the documents that the previous stage kept. `survivors` returns the last
stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus.dedup import exact, lines, semantic, substring
from plinth.corpus.dedup.near import accuracy, index, minhash
from plinth.corpus.dedup.parameters import Semantic
from plinth.errors import RecipeError
from plinth.recipe.recipe import Recipe
from plinth.records import Frozen, Manifest
from plinth_assets.framework import Inputs, Say, Stage, by_bucket, each, shared_owner
from plinth_assets.framework.present import markdown, table


def dedup_stages(recipe: Recipe) -> list[Stage]:
    """Return the stages that find exact duplicates and near duplicates, and the stage that indexes all documents for
    search.

    Raises:
        RecipeError: the rule that chooses the kept document names an unknown bucket or annotation.
    """
    _require(recipe.corpus.dedup.prefer, recipe.corpus.buckets, "corpus.dedup.prefer", "bucket")
    _require(_quality(recipe), recipe.corpus.annotate, "corpus.dedup.quality", "annotation")
    params, owner, kinds = recipe.corpus.dedup, shared_owner(recipe), ("parquet", "c")
    near = params.minhash.resolved()
    return [
        Stage(
            asset="dedup/exact",
            deps=each(recipe, "documents", "policy", *_quality(recipe)),
            make=partial(_exact, recipe),
            version=exact.VERSION,
            params=params.survivors(),
            libraries=fingerprint.UNICODE,
            group="dedup",
            description="Documents with equal normalized text, across all buckets.",
            owner=owner,
            kinds=("parquet",),
            present=_present_dedup,
        ),
        *(_signed(recipe, name) for name in recipe.corpus.buckets),
        Stage(
            asset="dedup/index",
            deps=each(recipe, "documents", "minhash"),
            make=partial(_index, recipe),
            version=index.VERSION,
            params=index.identity(params.minhash),
            libraries=fingerprint.UNICODE,
            group="dedup",
            description="Sorted MinHash band keys and text digests of all documents, for `plinth corpus near`.",
            owner=owner,
            kinds=("c",),
        ),
        Stage(
            asset="dedup/minhash",
            deps=(*each(recipe, "documents", "minhash", *_quality(recipe)), "dedup/exact"),
            make=partial(_near, recipe),
            version=minhash.VERSION,
            params={"minhash": near, **params.survivors()},
            libraries=fingerprint.UNICODE,
            group="dedup",
            description="Near duplicates: candidate pairs from MinHash LSH, each verified by its similarity.",
            owner=owner,
            kinds=kinds,
            present=_present_dedup,
        ),
    ]


def _signed(recipe: Recipe, name: str) -> Stage:
    params = recipe.corpus.dedup.minhash
    return Stage(
        asset=f"{name}/minhash",
        deps=(f"{name}/documents",),
        make=partial(_signatures, name, recipe),
        version=minhash.SIGNATURE_VERSION,
        params={**params.signature(), "bands": params.bands, "rows": params.rows},
        libraries=fingerprint.UNICODE,
        group="dedup",
        description=f"MinHash signatures of the documents of {name}, over word shingles.",
        owner=recipe.corpus.buckets[name].owner,
        kinds=("parquet", "c"),
    )


def _require(names: Iterable[str], known: Iterable[str], key: str, what: str) -> None:
    unknown = [name for name in names if name not in set(known)]
    if unknown:
        raise RecipeError(
            f"{key} names an unknown {what}",
            found=", ".join(unknown),
            expected=f"one of {', '.join(sorted(known))}",
            remedy=f"correct {key}",
        )


def _quality(recipe: Recipe) -> tuple[str, ...]:
    """Return the annotation that ranks documents by quality, if the recipe keeps the best document of each cluster."""
    quality = recipe.corpus.dedup.quality
    return (quality.split(".", 1)[0],) if quality else ()


def _qualities(recipe: Recipe, inputs: Inputs) -> dict[str, Manifest] | None:
    named = _quality(recipe)
    return by_bucket(recipe, inputs, named[0]) if named else None


def _signatures(name: str, recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return minhash.signatures(ctx, name, recipe.corpus.dedup.minhash, inputs[f"{name}/documents"])


def _exact(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    documents, policies = by_bucket(recipe, inputs, "documents"), by_bucket(recipe, inputs, "policy")
    return exact.run(ctx, recipe.corpus.dedup, documents, policies, quality=_qualities(recipe, inputs))


def _index(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    documents, signatures = by_bucket(recipe, inputs, "documents"), by_bucket(recipe, inputs, "minhash")
    return index.run(ctx, recipe.corpus.dedup.minhash, documents, signatures)


def _near(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    documents, signatures = by_bucket(recipe, inputs, "documents"), by_bucket(recipe, inputs, "minhash")
    params, found = recipe.corpus.dedup, inputs["dedup/exact"]
    return minhash.run(ctx, params, documents, signatures, found, quality=_qualities(recipe, inputs))


def _present_dedup(ctx: Context, made: Manifest) -> dict[str, Any]:
    rows = [[name, value] for name, value in made.stats.items() if isinstance(value, int | float)]
    shown = {"summary": markdown(table(["what", "documents"], rows))}
    if rates := accuracy.described(made.stats):
        strata = made.stats["accuracy"]["strata"]
        columns = {"bands": "shared bands", "removed": "removed", "similar": "rightly", "near": "with a duplicate",
                   "merged": "found"}  # fmt: skip
        by_bands = table([*columns.values()], [[row[name] for name in columns] for row in strata])
        lines = "\n".join(f"- {name}: {text}" for name, text in rates.items())
        shown["accuracy"] = markdown(f"{lines}\n\n{by_bands}")
    return shown


@dataclass(frozen=True)
class _SpanKind:
    asset: str
    version: str
    run: Callable[..., Manifest]
    description: str


#: Stages in order, by the field of `corpus.dedup` that enables each.
SPAN_KINDS = {
    "semantic": _SpanKind(
        semantic.ASSET,
        semantic.VERSION,
        semantic.run,
        "Semantic duplicates in chosen buckets: reordered or slightly paraphrased documents, by cosine similarity.",
    ),
    "lines": _SpanKind(
        lines.ASSET,
        lines.VERSION,
        lines.run,
        "Spans to cut: lines and paragraphs shared with other documents, and boilerplate.",
    ),
    "substring": _SpanKind(
        substring.ASSET,
        substring.VERSION,
        substring.run,
        "Spans to cut: passages that also occur in other documents. Each passage is compared word by word.",
    ),
}


def switched_on(recipe: Recipe) -> dict[str, Frozen]:
    """Return the parameters of the optional stages that the recipe enables, in pipeline order."""
    given = {name: getattr(recipe.corpus.dedup, name) for name in SPAN_KINDS}
    return {name: params for name, params in given.items() if params is not None}


def survivors(recipe: Recipe) -> str:
    """Return the key of the last deduplication asset, which lists the documents that deduplication keeps."""
    return ["dedup/minhash", *(SPAN_KINDS[name].asset for name in switched_on(recipe))][-1]


def span_stages(recipe: Recipe) -> list[Stage]:
    """Return the optional deduplication stages that the recipe enables."""
    made, before = list[Stage](), "dedup/minhash"
    for name, params in switched_on(recipe).items():
        kind, given = SPAN_KINDS[name], params.vectors if isinstance(params, Semantic) else None
        lists = (f"lists/{given}",) if given else ()
        made.append(
            Stage(
                asset=kind.asset,
                deps=(*each(recipe, "documents"), before, *lists),
                make=partial(_make, recipe, name, before, lists),
                version=kind.version,
                params=params.model_dump(mode="json"),
                libraries=fingerprint.UNICODE,
                group="dedup",
                description=kind.description,
                owner=shared_owner(recipe),
                kinds=("parquet", "c"),
                present=_present_spans,
            )
        )
        before = kind.asset
    return made


def _make(
    recipe: Recipe, name: str, before: str, lists: tuple[str, ...], ctx: Context, inputs: Inputs, say: Say
) -> Manifest:
    params, documents = switched_on(recipe)[name], by_bucket(recipe, inputs, "documents")
    given = {"vectors": inputs[lists[0]]} if lists else {}
    return SPAN_KINDS[name].run(ctx, params, documents, inputs[before], **given)


def _present_spans(ctx: Context, made: Manifest) -> dict[str, Any]:
    rows = [[name, value] for name, value in made.stats.items() if isinstance(value, int | float)]
    for kind in ("spans", "span_bytes"):
        rows += [[f"{kind}: {reason}", value] for reason, value in made.stats.get(kind, {}).items()]
    return {"summary": markdown(table(["quantity", "value"], rows))}
