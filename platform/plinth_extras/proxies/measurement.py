"""`proxies`: what the checkpoint writes where a product wants a form; the recipe's section `evaluation.proxies`."""

from __future__ import annotations

from pydantic import Field

from plinth.evaluation.measurement import Measurement
from plinth.extensions import late
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

MEASUREMENT = Measurement(
    name="proxies",
    description="What the checkpoint writes where a product wants a form.",
    asset="proxies",
    stages=late("plinth_extras.proxies.job:stages"),
    key="evaluation.proxies",
    pairs=late("plinth_extras.proxies.job:pairs"),
    headings={"proxies": "Product proxies"},
    scores=late("plinth_extras.proxies.job:scores"),
    section=late("plinth_extras.proxies.job:section"),
    position=5,
)
