"""All profiles by name. A new one is a constant in a file of this folder, and its comparison in tests/agreement."""

from __future__ import annotations

from plinth.corpus.policy.profiles.base import Profile
from plinth.corpus.policy.profiles.c4 import ALL as C4
from plinth.corpus.policy.profiles.gopher import ALL as GOPHER
from plinth.corpus.policy.profiles.web import ALL as WEB
from plinth.errors import RecipeError
from plinth.extensions import nearest

PROFILES: dict[str, Profile] = {one.name: one for one in (*GOPHER, *C4, *WEB)}


def profile(name: str) -> Profile:
    """A profile by name.

    Raises:
        RecipeError: there is none; the nearest name is given.
    """
    if name not in PROFILES:
        remedy = nearest(name, PROFILES) or "profiles are named `family/project`"
        raise RecipeError(f"no profile {name!r}", expected=", ".join(PROFILES), remedy=remedy)
    return PROFILES[name]
