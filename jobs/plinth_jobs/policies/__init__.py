"""Packaged gate policies, and the one that a demo signs.

default   every gate that needs no bound of one's own: where to begin
demo      of the recipe `demo`
tiny      of the recipe `tiny`

A policy is signed by the owner of its release (`plinth gates sign FILE`). Where the root of trust is a demo root, whose
keys all lie on one machine, the first run signs the packaged policy named after the release, or the default one with
the release's name: a demo asks no questions, and every page says that its root is one. A real root signs nothing by
itself, so a release without a signed policy passes no gate.
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
    """The file that a person means: a path, or the name of a packaged policy with or without `.yaml`."""
    from plinth.recipe.yaml_lines import named

    return named(given, Path(), FOLDER) or Path(given)


def ensure(ctx: Context, recipe: Recipe) -> SignedPolicy | None:
    """The policy that governs the recipe's release, signed first where the root is a demo root; None where none is.

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
    """The packaged policy of a release, or the default one in its name."""
    from plinth_registry import policy

    own = FOLDER / f"{release}.yaml"
    found = policy.load(own if own.exists() else FOLDER / f"{DEFAULT}.yaml")
    return found.model_copy(update={"release": release})
