"""The teacher of a run, and how much it counts."""

from __future__ import annotations

from pydantic import Field

from plinth.records import Frozen
from plinth.training.initial.parameters import InitialWeights


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

    @property
    def weights(self) -> InitialWeights:
        """The teacher as what a run begins from is named."""
        of_release = "@" in self.teacher or "/" in self.teacher
        return InitialWeights(release=self.teacher) if of_release else InitialWeights(checkpoint=self.teacher)


class TeacherState(Frozen):
    """The resolved teacher: digest of the manifest `teacher`, and how much it counts."""

    manifest: str
    share: float
    temperature: float
