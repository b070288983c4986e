"""The section `evaluation.fairness` of a recipe."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from plinth.records import Frozen, Name, internal
from plinth.sections import RecipeSection


class Fairness(Frozen):
    """Counterfactual pairs, and toxicity of continuations where the recipe annotates toxicity."""

    built_in: bool = Field(True, description="The pairs that come with Plinth: English; gender, age, religion, origin.")
    pairs: Mapping[Name, str] = Field(
        default_factory=dict, description="Pairs of yours by name: a JSONL file, relative to `input/`."
    )
    draws: int = internal(2, ge=1, description="Continuations of each prompt.")
    max_tokens: int = internal(48, ge=1, description="Tokens of a continuation, at most.")
    max_rejected: float = internal(0.01, ge=0, le=1, description="Most share of lines that are no pairs.")


SECTION = RecipeSection(
    name="evaluation.fairness",
    model=Fairness,
    description="Bias between groups, and toxicity of continuations; not measured unless this is set.",
)
