"""How many proxies, drawn with which seed."""

from __future__ import annotations

from pydantic import Field

from plinth.records import Frozen, internal


class Proxies(Frozen):
    """Generated items in five families that are checked by code."""

    items: int = Field(40, ge=2, le=2000, description="Items of each family.")
    seed: int = internal(0, ge=0, description="Draws the items.")
    max_tokens: int = internal(48, ge=1, description="Tokens that the model may write to an item.")
