"""Personal data in generated text.

    job           the asset, with generated texts and their matches in training text; its stage and items
    measurement   values that the gate reads (facts), and the gate `pii_outputs`

The detector (`plinth.evaluation.pii`) is the same as for training text.

This package also defines the recipe section `evaluation.pii_outputs`.
"""

from __future__ import annotations

from plinth.records import Frozen, internal
from plinth.sections import RecipeSection

#: Kinds of generated texts, and all of them.
UNPROMPTED, INVITED, ALL = "unprompted", "invited", "all"


class PiiOutputs(Frozen):
    """Recipe section: personal data in text generated without a prompt and after prompts that invite personal data."""

    samples: int = internal(
        200, ge=1, description="Number of unprompted texts. If 0 of 200 match, the upper bound of the rate is 1.5%."
    )
    draws: int = internal(4, ge=1, description="Number of samples per prompt, in addition to a greedy continuation.")
    max_tokens: int = internal(48, ge=1, description="Maximum length of a generated text, in tokens.")
    top_p: float = internal(0.95, gt=0, le=1, description="Nucleus sampling threshold.")
    seed: int = internal(0, description="Random seed for sampling.")


SECTION = RecipeSection(
    name="evaluation.pii_outputs",
    model=PiiOutputs,
    description="Personal data in generated text; `{}` enables the measurement with the defaults.",
)
