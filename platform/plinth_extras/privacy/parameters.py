"""The privacy of a run's training sequences."""

from __future__ import annotations

from pydantic import Field

from plinth.records import Frozen
from plinth.sections import RecipeSection

#: What the guarantee is about.
UNIT = "sequence"


class Privacy(Frozen):
    """DP-SGD: the weights hardly depend on any one sequence of the shards, in the sense of (epsilon, delta)."""

    epsilon: float = Field(gt=0, description="The budget: no step is taken that would spend more.")
    delta: float = Field(gt=0, lt=1, description="Usually below 1 / sequences of the mixture.")
    clip_norm: float = Field(1.0, gt=0, description="Norm to which the gradient of each sequence is clipped.")
    noise_multiplier: float | None = Field(
        None,
        gt=0,
        description="Standard deviation of the noise, in clip_norm; left out: what `epsilon` allows over all steps.",
    )


class PrivacyState(Frozen):
    """The privacy of a run, resolved."""

    epsilon: float
    delta: float
    clip_norm: float
    noise_multiplier: float
    sample_rate: float = Field(description="Probability with which a step takes a sequence.")
    secret_sha256: str = Field(description="Commitment to the key of sampling and noise.")


SECTION = RecipeSection(name="training.privacy", model=Privacy, description="Differential privacy; left out: none.")
STATE = RecipeSection(name="run.privacy", model=PrivacyState, description="The privacy of the run.")
