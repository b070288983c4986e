"""Packaged gate policies.

    default   starting point, with every gate that needs no custom limit
    demo      for the recipe `demo`
    tiny      for the recipe `tiny`

A policy is signed by the owner of its release (`plinth gates sign FILE`). A demo root keeps all keys on one machine, so
the first run signs the packaged policy that is named after the release, or the default policy. Every page labels
such a root as a demo root. A real root never signs automatically, so a release without a signed policy passes no gate.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.recipe.recipe import Recipe
    from plinth_registry.gates.settings import GatePolicy
    from plinth_registry.policy import SignedPolicy

FOLDER = Path(__file__).parent
DEFAULT = "default"


def find(given: str) -> Path:
    """Return the file of a policy, which is given by its path or packaged name, with or without `.yaml`."""
    from plinth.recipe.yaml_lines import named

    return named(given, Path(), FOLDER) or Path(given)


def ensure(ctx: Context, recipe: Recipe) -> SignedPolicy | None:
    """Return the current signed policy of the recipe's release, or None if there is none. Under a demo root, a missing
    policy is signed first.

    Raises:
        SignatureError: no root of trust is pinned, or a signed version was changed or removed.
    """
    from plinth.trust.root import Trust
    from plinth_registry import policy

    if recipe.release is None:
        return None
    signed = policy.history(ctx, recipe.release.name)
    if not signed and Trust.of(ctx.workspace).root.demo:
        return policy.sign(ctx, packaged(recipe.release.name))
    return policy.current(ctx, recipe.release.name) if signed else None


def packaged(release: str) -> GatePolicy:
    """Return the policy packaged for a release. If there is none, return the default policy with its `release` set
    to this release."""
    from plinth_registry import policy

    own = FOLDER / f"{release}.yaml"
    found = policy.load(own if own.exists() else FOLDER / f"{DEFAULT}.yaml")
    return found.model_copy(update={"release": release})
