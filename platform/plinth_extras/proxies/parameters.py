"""`evaluation.proxies`: the number of items, and their seed."""

from __future__ import annotations

from pydantic import Field

from plinth.records import Frozen, internal
from plinth.sections import RecipeSection


class Proxies(Frozen):
    """Generated items in five families that are checked by code."""

    items: int = Field(40, ge=2, le=2000, description="Items of each family.")
    seed: int = internal(0, ge=0, description="Draws the items.")
    max_tokens: int = internal(48, ge=1, description="Tokens that the model may write to an item.")


SECTION = RecipeSection(
    name="evaluation.proxies",
    model=Proxies,
    description="Product proxies: generated items, checked by code.",
    dumped=True,
)
