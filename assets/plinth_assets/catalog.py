"""All stages of a recipe, upstream first."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from plinth.errors import ExtensionError, MissingError, RecipeError
from plinth.extensions import Catalogue
from plinth.recipe.recipe import Recipe
from plinth_assets import (
    accounts,
    annotate,
    candidate,
    dedup,
    initial,
    measurements,
    sources,
    tokens,
    training,
    verdicts,
)
from plinth_assets.framework import Stage, Stages, attested
from plinth_assets.measurements import probes_stage

#: Stages of a recipe with a mixture: token stages and later ones.
TOKENS = (
    initial.model_stages,
    tokens.tokenizer_stages,
    tokens.canary_stages,
    tokens.shard_stages,
    tokens.packing_stages,
    tokens.mixture_stages,
)
MODEL = (training.stages, measurements.stages, candidate.page_stages, candidate.release_stages)
#: All core stages, in order.
OURS = (
    initial.sampled_stages,
    sources.source_stages,
    sources.list_stages,
    sources.extraction_stages,
    sources.document_stages,
    annotate.model_stages,
    annotate.annotation_stages,
    annotate.slice_stages,
    verdicts.removal_stages,
    verdicts.policy_stages,
    dedup.dedup_stages,
    dedup.span_stages,
    verdicts.holdout_stages,
    verdicts.contamination_stages,
    probes_stage.set_stages,
    verdicts.protected_stages,
    verdicts.curate_stages,
    *TOKENS,
    accounts.funnel_stages,
    candidate.card_stages,
    accounts.ledger_stages,
    *MODEL,
)
#: Stages of extension packages; core stages may read their output.
ADDED = Catalogue("plinth.stages", "stages", Stages, {})


def stages(recipe: Recipe) -> tuple[Stage, ...]:
    """Return all stages of the recipe, upstream first. A section that the recipe leaves out adds no stages.

    Raises:
        ExtensionError: the stages of another package cannot be loaded, or two stages produce the same asset.
    """
    has = recipe.mixture is not None
    makers: list[Callable[[Recipe], Sequence[Stage]]] = [make for make in OURS if has or make not in (*TOKENS, *MODEL)]
    makers += [added.stages for added in ADDED.values() if has or not added.with_mixture]
    return _upstream_first([attested(recipe, stage) for make in makers for stage in make(recipe)])


def _upstream_first(given: Sequence[Stage]) -> tuple[Stage, ...]:
    """Return the stages sorted so that each stage follows the stages that produce its inputs.

    Raises:
        RecipeError: stages need each other's outputs.
    """
    waiting, done, path = dict[str, Stage](), list[Stage](), list[str]()
    for stage in given:
        if waiting.setdefault(stage.asset, stage) is not stage:
            raise ExtensionError(
                f"two stages make the asset {stage.asset!r}",
                found=f"{waiting[stage.asset].description!r} and {stage.description!r}",
                expected="one stage for each asset",
                remedy="rename the asset of the added stage, or uninstall its package",
            )

    def take(asset: str) -> None:
        if asset in path:
            raise RecipeError(
                "assets of the recipe need each other",
                found=" needs ".join([*path[path.index(asset) :], asset]),
                expected="assets that need only earlier ones",
                remedy="let models and rules that a bucket's policy uses read no bucket that is rewritten from it",
            )
        if stage := waiting.pop(asset, None):
            path.append(asset)
            for dep in stage.deps:
                take(dep)
            path.pop()
            done.append(stage)

    for stage in given:
        take(stage.asset)
    return tuple(done)


def selected(all_stages: tuple[Stage, ...], names: tuple[str, ...]) -> tuple[Stage, ...]:
    """Return the stages of the named assets and of all assets upstream of them. `*` in a name matches any characters.
    Without names, return all stages.

    Raises:
        MissingError: a name matches no asset.
    """
    if not names:
        return all_stages
    by_asset = {stage.asset: stage for stage in all_stages}
    wanted: set[str] = set()
    for name in names:
        matching = [asset for asset in by_asset if fnmatchcase(asset, name)]
        if not matching:
            near = difflib.get_close_matches(name, by_asset, n=5, cutoff=0.4)
            raise MissingError(
                f"no asset {name}",
                expected=f"one of {len(by_asset)}" + (f"; nearest: {', '.join(near)}" if near else ""),
                remedy="list assets with `plinth status`; `*` matches any characters",
            )
        wanted.update(matching)
    waiting = list(wanted)
    while waiting:
        for dep in by_asset[waiting.pop()].deps:
            if dep not in wanted:
                wanted.add(dep)
                waiting.append(dep)
    return tuple(stage for stage in all_stages if stage.asset in wanted)
