"""A proposal to go on training a release on text that it has drifted from: a recipe over the base. Nothing starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import yaml

from plinth.recipe.recipe import Recipe
from plinth.tokens.mixture.parameters import Phase
from plinth_audit.drift.judge import SliceDrift

#: Factor on the share of a bucket that drifts; and the share of all tokens that are the champion's own, against
#: forgetting.
FACTOR: Final = 2.0
REPLAY: Final = 0.1


def overlay(recipe: Recipe, base: str, found: Iterable[SliceDrift]) -> str:
    """YAML of a recipe that begins from the champion and gives buckets that drift more of the mixture.

    Args:
        base: the recipe that it extends: a path, or a packaged name.

    Raises:
        RecipeError: the recipe has no release.
        ValueError: nothing drifts, or the recipe has no mixture.
    """
    drifting = [one for one in found if one.drifts]
    if not drifting or recipe.mixture is None:
        raise ValueError("nothing drifts, or there is no mixture to change")
    own = [one for one in drifting if one.axis == "bucket"] or drifting
    buckets = sorted({one.bucket for one in own if one.bucket in recipe.corpus.buckets})
    release = recipe.required_release().name
    data = {
        "extends": base,
        "training": {"initial": {"release": f"{release}@champion", "replay": REPLAY}},
        "mixture": {"phases": [_more(phase, buckets) for phase in recipe.mixture.phases]},
    }
    said = "".join(f"# {in_words(one)}\n" for one in drifting)
    head = (
        f"# Proposed because held-out text has drifted from {release}; nothing is confirmed yet, and nothing starts.\n"
    )
    return head + said + str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110))


def in_words(one: SliceDrift) -> str:
    """A slice that drifts, for people and alarms."""
    now = "" if one.latest is None else f" to {one.latest[0]:.3f}"
    change = f"bits per byte went from {one.reference[0]:.3f}{now}"
    named = ", ".join(document.uri for document in one.moved[:3])
    return (
        f"{one.label}: {change} (p {one.adjusted:.2g} whenever one looks); such as {named or 'none of its documents'}"
    )


def _more(phase: Phase, buckets: Sequence[str]) -> dict[str, Any]:
    """The phase with more of some buckets: by their weights where it names them, else by a factor on their shares."""
    data: dict[str, Any] = phase.model_dump(mode="json", exclude_unset=True)
    weights, factors = dict(data.get("weights") or {}), dict(data.get("upsample") or {})
    for bucket in buckets:
        own = [key for key in weights if key == bucket or key.startswith(f"{bucket}/")]
        for key in own:
            weights[key] = weights[key] * FACTOR
        if not own:
            factors[bucket] = factors.get(bucket, 1.0) * FACTOR
    return data | ({"weights": weights} if weights else {}) | ({"upsample": factors} if factors else {})
