"""Personal data in the text that a checkpoint writes.

    job           the asset, what the checkpoint writes and where it is in training text; its stage and items
    measurement   facts, the gate `pii_outputs`

The detector is the corpus's own (`plinth.evaluation.pii`), as is that of personal data in training text.

Also here: the section `evaluation.pii_outputs` of a recipe.
"""

from __future__ import annotations

from plinth.records import Frozen, internal
from plinth.sections import RecipeSection

#: Kinds of texts that a checkpoint wrote, and all of them.
UNPROMPTED, INVITED, ALL = "unprompted", "invited", "all"


class PiiOutputs(Frozen):
    """Does a checkpoint write personal data? It writes without a prompt, and after prompts that invite it."""

    samples: int = internal(200, ge=1, description="Texts without a prompt: 0 found of 200 bounds their share by 1.5%.")
    draws: int = internal(4, ge=1, description="Drawn continuations of each prompt, beside the most probable one.")
    max_tokens: int = internal(48, ge=1, description="Tokens of a text, at most.")
    top_p: float = internal(0.95, gt=0, le=1, description="Draw from the fewest tokens that are together so probable.")
    seed: int = internal(0, description="Of the draws.")


SECTION = RecipeSection(
    name="evaluation.pii_outputs",
    model=PiiOutputs,
    description="Whether the checkpoint writes personal data; `{}` asks for it.",
)
