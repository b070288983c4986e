"""The teacher of a run, and how much it counts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plinth.records import Frozen
from plinth.sections import RecipeSection
from plinth.training.parameters.initial import InitialWeights

#: For a teacher that speaks of other tokens.
VOCABULARY_REMEDY = "choose a teacher that was trained with this tokenizer, or tokenizer.kind: teacher to keep its own"


class Distillation(Frozen):
    """A model to learn from, with the run's tokenizer, whole on every device."""

    teacher: str = Field(
        min_length=1,
        description="`NAME@champion` or `NAME/VERSION` of a release, or `RUN` or `RUN:STEP` of this workspace; found "
        "and proved as `training.initial` is.",
    )
    share: float = Field(
        0.5, gt=0, le=1, description="Of the divergence from the teacher in the loss; the rest is cross-entropy."
    )
    temperature: float = Field(1.0, gt=0, description="Of both distributions in the divergence.")

    top_k: int | None = Field(
        None,
        ge=1,
        exclude_if=lambda count: count is None,
        description="Stores so many most probable tokens of every position, and the mass of all others, once before "
        "the run, which then needs no teacher beside it; left out: the teacher computes every batch.",
    )
    stored: Literal["fp16", "fp32"] = Field(
        "fp16", exclude_if=lambda kind: kind == "fp16", description="`top_k`: how logarithms of probabilities are kept."
    )

    @property
    def weights(self) -> InitialWeights:
        """The teacher as what a run begins from is named."""
        return InitialWeights.named(self.teacher)


class TeacherState(Frozen):
    """The resolved teacher: digest of the manifest `teacher`, how much it counts, and the digest of its stored logits
    (`teacher_logits`), where the run reads those."""

    manifest: str
    share: float
    temperature: float
    logits: str = Field("", exclude_if=lambda digest: not digest)


SECTION = RecipeSection(
    name="training.distillation", model=Distillation, description="A teacher; left out: cross-entropy alone."
)
STATE = RecipeSection(name="run.distillation", model=TeacherState, description="The teacher of the run.")
