"""Product proxies: small generated items that represent product tasks, checked by code.

    job          generated items of five families, checks of the answers; the asset `proxies` and its stage

An item has a correct and a broken answer of equal length, which differ in a few characters. The model's output passes
or fails a check. For models too small to pass, the preference for the correct over the broken answer is measured.
There is no judge model, and nothing is downloaded.

Also here: the section `evaluation.proxies` of a recipe and the measurement.
"""

from __future__ import annotations

from pydantic import Field

from plinth.evaluation.measurement import Measurement
from plinth.extensions import late
from plinth.records import Frozen, internal
from plinth.sections import RecipeSection


class Proxies(Frozen):
    """Settings of the product proxies: generated items in five families, with answers that are checked by code."""

    items: int = Field(40, ge=2, le=2000, description="Number of items per item family.")
    seed: int = internal(0, ge=0, description="Random seed of the generated items.")
    max_tokens: int = internal(48, ge=1, description="Maximum number of generated tokens per item.")


SECTION = RecipeSection(
    name="evaluation.proxies",
    model=Proxies,
    description="Product proxies: generated items whose answers are checked by code.",
    dumped=True,
)

MEASUREMENT = Measurement(
    name="proxies",
    description="Product proxies: generated items whose answers are checked by code.",
    asset="proxies",
    stages=late("plinth_extras.proxies.job:stages"),
    key="evaluation.proxies",
    pairs=late("plinth_extras.proxies.job:pairs"),
    headings={"proxies": "Product proxies"},
    scores=late("plinth_extras.proxies.job:scores"),
    section=late("plinth_extras.proxies.job:section"),
    position=5,
)
