"""`training.distillation` as a training hook: checks of the recipe, the teacher of a run, its stored logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from plinth.extensions import late
from plinth.tokens.order.parameters import lengths
from plinth.training.hooks import TrainingHook
from plinth.training.parameters.initial import InitialWeights
from plinth.training.parameters.parallel import not_with
from plinth_extras.distillation.parameters import VOCABULARY_REMEDY, Distillation, TeacherState

if TYPE_CHECKING:
    from plinth.training.config import RunConfig
    from plinth.training.parallel.topology import RankPlace
    from plinth.training.parameters.run import Training
    from plinth.training.preparation import Preparation
    from plinth_extras.distillation.stored_logits import LogitRows

#: Assets of a run's teacher, and of its stored logits.
TEACHER, LOGITS = "teacher", "teacher_logits"

UNDIVIDED = ("tensor", "sequence", "pipeline")


def problems(training: Training, params: Distillation) -> Iterator[str]:
    """Divisions of the model and changes of its rows that a teacher does not follow."""
    if divided := not_with(training.parallel, undivided=UNDIVIDED):
        yield (
            f"distillation with parallel.{divided[0]} {getattr(training.parallel, divided[0])}: a teacher's logits are "
            "of the whole vocabulary and of whole sequences; use ZeRO"
        )
    shorter = [length for _, length in lengths(training)]
    if params.top_k is not None and shorter:
        yield (
            f"distillation.top_k with rows of {shorter[0]} tokens: logits are stored of whole sequences; leave "
            "out top_k, or the change of length"
        )


def models(params: Distillation) -> dict[str, InitialWeights]:
    """The teacher, named as the weights that a run begins from are."""
    return {TEACHER: params.weights}


def assets(params: Distillation) -> tuple[str, ...]:
    """The stored logits, where the recipe stores them."""
    return (LOGITS,) if params.top_k is not None else ()


def prepare(given: Preparation, params: Distillation) -> TeacherState:
    """The model that the run learns from, after a check that it has the same tokens.

    Raises:
        RecipeError: it has others.
    """
    from plinth.training.initial.agreement import require_same_vocabulary

    teacher, logits = given.read[TEACHER], given.read.get(LOGITS)
    key = "training.distillation.teacher"
    require_same_vocabulary(given.ctx.store, teacher, given.tokenizer, key, VOCABULARY_REMEDY)
    said = "" if logits is None else logits.digest
    return TeacherState(manifest=teacher.digest, share=params.share, temperature=params.temperature, logits=said)


def inputs(state: TeacherState) -> dict[str, str]:
    """Digests of the teacher and of its stored logits."""
    return {TEACHER: state.manifest, **({LOGITS: state.logits} if state.logits else {})}


def reads(
    config: RunConfig, place: RankPlace, state: TeacherState
) -> Callable[[int, int], tuple[LogitRows, ...]] | None:
    """The stored logits of this rank's rows of a step; None where the teacher computes every batch."""
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
