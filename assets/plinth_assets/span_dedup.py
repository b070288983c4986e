"""`dedup/semantic`, `dedup/lines`, `dedup/substring`: the rest of the cascade, where the recipe switches it on.

Each reads the survivors of the stage before it and hands its own on; `survivors` names the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus.dedup import lines
from plinth.corpus.dedup.parameters import Semantic
from plinth.corpus.dedup.semantic import semantic
from plinth.corpus.dedup.substring import substring
from plinth.recipe.recipe import Recipe
from plinth.records import Frozen, Manifest
from plinth_assets.framework.inputs import by_bucket, each, shared_owner
from plinth_assets.framework.present import markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage


@dataclass(frozen=True)
class _Kind:
    asset: str
    version: str
    run: Callable[..., Manifest]
    description: str


#: Stages in order, by the field of `corpus.dedup` that switches each on.
KINDS = {
    "semantic": _Kind(
        semantic.ASSET,
        semantic.VERSION,
        semantic.run,
        "Look-alikes in chosen buckets: reordered or lightly reworded, by cosine of vectors.",
    ),
    "lines": _Kind(
        lines.ASSET,
        lines.VERSION,
        lines.run,
        "Lines and paragraphs that other documents have too, and boilerplate, as cuts.",
    ),
    "substring": _Kind(
        substring.ASSET,
        substring.VERSION,
        substring.run,
        "Passages that occurred before, as cuts; each compared word for word.",
    ),
}


def switched_on(recipe: Recipe) -> dict[str, Frozen]:
    """The parameters of these stages that are on, in order."""
    given = {name: getattr(recipe.corpus.dedup, name) for name in KINDS}
    return {name: params for name, params in given.items() if params is not None}


def survivors(recipe: Recipe) -> str:
    """The asset with the survivors of deduplication: its last stage."""
    return ["dedup/minhash", *(KINDS[name].asset for name in switched_on(recipe))][-1]


def stages(recipe: Recipe) -> list[Stage]:
    """The stages that are on."""
    made, before = list[Stage](), "dedup/minhash"
    for name, params in switched_on(recipe).items():
        kind, given = KINDS[name], params.vectors if isinstance(params, Semantic) else None
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
                present=_present,
            )
        )
        before = kind.asset
    return made


def _make(
    recipe: Recipe, name: str, before: str, lists: tuple[str, ...], ctx: Context, inputs: Inputs, say: Say
) -> Manifest:
    params, documents = switched_on(recipe)[name], by_bucket(recipe, inputs, "documents")
    given = {"vectors": inputs[lists[0]]} if lists else {}
    return KINDS[name].run(ctx, params, documents, inputs[before], **given)


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    rows = [[name, value] for name, value in made.stats.items() if isinstance(value, int | float)]
    for kind in ("spans", "span_bytes"):
        rows += [[f"{kind}: {reason}", value] for reason, value in made.stats.get(kind, {}).items()]
    return {"summary": markdown(table(["what", "how much"], rows))}
