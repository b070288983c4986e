"""Distillation: a run with a loss that includes the divergence from a teacher model.

    teacher         the teacher on a rank; its logits for all sequences of a run, stored once (imports torch)
    stored_logits   reader of the asset `teacher_logits`, by position, and the stage that writes the asset

The loss itself is in `plinth.model.loss`. The teacher is resolved and verified like `initial` weights. Its digest is
part of the run's key and an input of the asset `run`, so that lineage and taints include the teacher.

Also here: the section `training.distillation` of a recipe, and the training hook, which checks the recipe and provides
the teacher and its stored logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from plinth.extensions import late
from plinth.records import Frozen
from plinth.sections import RecipeSection
from plinth.tokens.order.steps import lengths
from plinth.training.hooks import TrainingHook
from plinth.training.parameters.initial import InitialWeights
from plinth.training.parameters.parallel import not_with

if TYPE_CHECKING:
    from plinth.training.config import RunConfig
    from plinth.training.parallel.topology import RankPlace
    from plinth.training.parameters.run import Training
    from plinth.training.preparation import Preparation
    from plinth_extras.distillation.stored_logits import LogitRows

#: Remedy for a teacher with another tokenizer.
VOCABULARY_REMEDY = "choose a teacher that was trained with this tokenizer, or set tokenizer.kind: teacher"


class Distillation(Frozen):
    """Distillation from a teacher model with the run's tokenizer. Unless `top_k` is set, every device loads the whole
    teacher."""

    teacher: str = Field(
        min_length=1,
        description="Teacher as `NAME@champion` or `NAME/VERSION` (a release), or as `RUN` or `RUN:STEP` in this "
        "workspace. It is resolved and verified like `training.initial`.",
    )
    share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Weight of the divergence from the teacher in the loss; the rest of the weight is on the "
        "cross-entropy.",
    )
    temperature: float = Field(
        1.0, gt=0, description="Temperature of the teacher's and the student's distribution in the divergence."
    )

    top_k: int | None = Field(
        None,
        ge=1,
        exclude_if=lambda count: count is None,
        description="Number of most probable tokens per position to store before the run, with the total probability "
        "of all other tokens. The run then does not load the teacher. By default, the teacher is evaluated on every "
        "batch.",
    )
    stored: Literal["fp16", "fp32"] = Field(
        "fp16", exclude_if=lambda kind: kind == "fp16", description="Precision of stored log-probabilities (`top_k`)."
    )

    @property
    def weights(self) -> InitialWeights:
        """Teacher, as a reference to initial weights."""
        return InitialWeights.named(self.teacher)


class TeacherState(Frozen):
    """Resolved teacher: manifest digest, loss weight and temperature.

    `logits` is the digest of the manifest `teacher_logits`, or empty if the run does not read stored logits.
    """

    manifest: str
    share: float
    temperature: float
    logits: str = Field("", exclude_if=lambda digest: not digest)


SECTION = RecipeSection(
    name="training.distillation", model=Distillation, description="Distillation from a teacher; disabled by default."
)
STATE = RecipeSection(name="run.distillation", model=TeacherState, description="Resolved teacher of the run.")

#: Assets of a run's teacher, and of its stored logits.
TEACHER, LOGITS = "teacher", "teacher_logits"

UNDIVIDED = ("tensor", "sequence", "pipeline")


def problems(training: Training, params: Distillation) -> Iterator[str]:
    """Yield an error text for each setting that distillation does not support: parallel layouts, and changes of row
    length."""
    if divided := not_with(training.parallel, undivided=UNDIVIDED):
        yield (
            f"distillation does not support parallel.{divided[0]} {getattr(training.parallel, divided[0])}: a "
            "teacher's logits cover the whole vocabulary and whole sequences; use ZeRO"
        )
    shorter = [length for _, length in lengths(training)]
    if params.top_k is not None and shorter:
        yield (
            f"distillation.top_k does not support rows of {shorter[0]} tokens: logits are stored for whole sequences; "
            "remove top_k, or the change of row length"
        )


def models(params: Distillation) -> dict[str, InitialWeights]:
    """Return the reference to the teacher's weights, by asset name."""
    return {TEACHER: params.weights}


def assets(params: Distillation) -> tuple[str, ...]:
    """Return the name of the asset with the teacher's stored logits, or nothing if the recipe does not store logits."""
    return (LOGITS,) if params.top_k is not None else ()


def prepare(given: Preparation, params: Distillation) -> TeacherState:
    """Resolve the teacher, and check that it has the run's tokenizer.

    Raises:
        RecipeError: the tokenizers of the teacher and the run differ.
    """
    from plinth.training.initial import require_same_vocabulary

    teacher, logits = given.read[TEACHER], given.read.get(LOGITS)
    key = "training.distillation.teacher"
    require_same_vocabulary(given.ctx.store, teacher, given.tokenizer, key, VOCABULARY_REMEDY)
    said = "" if logits is None else logits.digest
    return TeacherState(manifest=teacher.digest, share=params.share, temperature=params.temperature, logits=said)


def inputs(state: TeacherState) -> dict[str, str]:
    """Return the digests of the teacher and of its stored logits, by asset name."""
    return {TEACHER: state.manifest, **({LOGITS: state.logits} if state.logits else {})}


def reads(
    config: RunConfig, place: RankPlace, state: TeacherState
) -> Callable[[int, int], tuple[LogitRows, ...]] | None:
    """Return a function that reads the stored logits for this rank's rows of a step.

    Returns None if no logits are stored, because the teacher then computes them for every batch.
    """
    if not state.logits:
        return None
    from plinth.storage.shared_store import open_store
    from plinth.storage.state import Refs
    from plinth.storage.workspace import Workspace
    from plinth_extras.distillation.stored_logits import StoredLogits

    workspace, micro = Workspace(config.workspace), config.micro_batch_sequences
    stored = StoredLogits(open_store(workspace), Refs(workspace).load(state.logits))

    def of_step(step: int, rows: int) -> tuple[LogitRows, ...]:
        first = config.steps.take(step)[0] + place.data * rows
        return tuple(stored.rows(start, start + micro) for start in range(first, first + rows, micro))

    return of_step


HOOK = TrainingHook(
    name="distillation",
    params=Distillation,
    state=TeacherState,
    rank=late("plinth_extras.distillation.teacher:LoadedTeacher"),
    problems=problems,
    models=models,
    assets=assets,
    prepare=prepare,
    inputs=inputs,
    reads=reads,
    unidentified=("teacher",),
    undivided=UNDIVIDED,
    position=1,
)
