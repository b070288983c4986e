"""Every stage of a recipe, in an order in which each comes after what it reads."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from plinth.errors import MissingError
from plinth.extensions import Catalogue
from plinth.recipe.recipe import Recipe
from plinth_assets import (
    annotate,
    canaries,
    candidate,
    contamination,
    curate,
    data_card,
    dedup,
    documents,
    evaluation_page,
    funnel,
    holdout,
    initial,
    ledger,
    lists,
    measurements,
    mixture,
    models,
    packing,
    policy,
    probe_sets,
    protected,
    removal_rates,
    sampled,
    shards,
    slices,
    sources,
    span_dedup,
    tokenizer,
    training,
)
from plinth_assets.framework.stage import Stage, Stages, attested

STEMS = (
    sampled,
    sources,
    lists,
    documents,
    models,
    annotate,
    slices,
    removal_rates,
    policy,
    dedup,
    span_dedup,
    holdout,
    contamination,
    probe_sets,
    protected,
    curate,
    initial,
    tokenizer,
    canaries,
    shards,
    packing,
    mixture,
    funnel,
    data_card,
    ledger,
    training,
    measurements,
    evaluation_page,
    candidate,
)

#: Stages of a recipe that has a mixture; `candidate` looks for `release` itself.
FOLLOWS_MIXTURE = (
    *(initial, tokenizer, canaries, shards, packing, mixture),
    *(training, measurements, evaluation_page, candidate),
)


#: Stages of the ring and of other packages; what they make may be read by those above.
ADDED = Catalogue("plinth.stages", "stages", Stages, {})


def stages(recipe: Recipe) -> tuple[Stage, ...]:
    """All stages of the recipe, upstream first; a section that the recipe lacks has none.

    Raises:
        ExtensionError: stages of another package cannot be used.
    """
    has = recipe.mixture is not None
    stems = [stem.stages for stem in STEMS if has or stem not in FOLLOWS_MIXTURE]
    stems += [added.stages for added in ADDED.values() if has or not added.with_mixture]
    return _upstream_first([attested(recipe, stage) for make in stems for stage in make(recipe)])


def _upstream_first(given: Sequence[Stage]) -> tuple[Stage, ...]:
    """The stages in their order, each after those that it reads."""
    waiting, done = {stage.asset: stage for stage in given}, list[Stage]()

    def take(asset: str) -> None:
        if stage := waiting.pop(asset, None):
            for dep in stage.deps:
                take(dep)
            done.append(stage)

    for stage in given:
        take(stage.asset)
    return tuple(done)


def selected(all_stages: tuple[Stage, ...], names: tuple[str, ...]) -> tuple[Stage, ...]:
    """The named assets with everything they need; `*` in a name stands for any letters. No names: all.

    Raises:
        MissingError: a name that no asset has.
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
                remedy="`plinth status` lists assets; `*` stands for any letters",
            )
        wanted.update(matching)
    waiting = list(wanted)
    while waiting:
        for dep in by_asset[waiting.pop()].deps:
            if dep not in wanted:
                wanted.add(dep)
                waiting.append(dep)
    return tuple(stage for stage in all_stages if stage.asset in wanted)
