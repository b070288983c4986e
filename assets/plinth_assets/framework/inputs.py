"""Picking inputs by bucket, and the owner of assets that span buckets."""

from __future__ import annotations

from collections.abc import Iterable

from plinth.corpus.canaries.parameters import BUCKET as CANARIES
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.framework.stage import Inputs


def each(recipe: Recipe, *kinds: str) -> tuple[str, ...]:
    """Keys of these stages in every bucket: `each(recipe, "documents")` -> `web/documents`, …"""
    return tuple(f"{bucket}/{kind}" for kind in kinds for bucket in recipe.corpus.buckets)


def by_bucket(recipe: Recipe, inputs: Inputs, kind: str) -> dict[str, Manifest]:
    """The manifests of one stage, by bucket."""
    return {bucket: inputs[f"{bucket}/{kind}"] for bucket in recipe.corpus.buckets}


def compares(recipe: Recipe) -> bool:
    """Whether training text is compared with protected sets: the recipe's own, or the probes of its run."""
    return bool(recipe.corpus.protected.sets) or recipe.probes is not None


def planted(recipe: Recipe, *kinds: str) -> tuple[str, ...]:
    """Keys of these stages of the planted text, where the recipe has canaries."""
    return tuple(f"{CANARIES}/{kind}" for kind in kinds) if recipe.corpus.canaries else ()


def read_by_run(recipe: Recipe, inputs: Inputs, kind: str) -> dict[str, Manifest]:
    """The manifests of one stage of all that a run reads: by bucket, and of the planted text."""
    return by_bucket(recipe, inputs, kind) | {key.partition("/")[0]: inputs[key] for key in planted(recipe, kind)}


def shared_owner(recipe: Recipe) -> str:
    """The owner of assets that span the buckets: the owner of most buckets, first by name in a tie."""
    owners: Iterable[str] = [bucket.owner for bucket in recipe.corpus.buckets.values()]
    counted = sorted(owners)
    return max(sorted(set(counted)), key=counted.count)
