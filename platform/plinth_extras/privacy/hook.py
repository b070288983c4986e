"""`training.privacy` as a training hook: checks of the recipe, noise and key of a run, its sampling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from plinth.errors import RecipeError
from plinth.extensions import late
from plinth.sections import of
from plinth.training.hooks import TrainingHook
from plinth.training.parameters.parallel import not_with
from plinth_extras.privacy.parameters import Privacy, PrivacyState

if TYPE_CHECKING:
    from plinth.tokens.order.steps import Steps
    from plinth.training.config import RunConfig
    from plinth.training.parameters.run import Training
    from plinth.training.preparation import Preparation
    from plinth.training.telemetry.timeline import History

UNDIVIDED = ("tensor", "sequence", "pipeline", "zero_stage", "offload")


def problems(training: Training, params: Privacy) -> Iterator[str]:
    """Sections that would read the text past the noise, or break the assumptions of the accountant."""
    divided = not_with(training.parallel, undivided=UNDIVIDED)
    wrong = {
        **{f"parallel.{name} {getattr(training.parallel, name)}": True for name in divided},
        "precision fp16": training.precision == "fp16",
        f"float8 {training.float8}": training.float8 != "none",
        "changes of batch or length": bool(training.batch_schedule or training.length_schedule or training.amendments),
        "guard.enabled, whose verdicts depend on losses without noise": training.guard.enabled,
        "stopping.plateau and checkpoints.keep_best, which do too": bool(
            training.stopping.plateau or training.checkpoints.keep_best
        ),
        "distillation": getattr(training, "distillation", None) is not None,
        **{f"extensions.{name}": True for name in training.extensions},
    }
    found = [name for name, holds in wrong.items() if holds]
    if found:
        yield f"privacy with {'; '.join(found)}: expected ZeRO-0 or 1 over data ranks, and no guard"


def prepare(given: Preparation, params: Privacy) -> PrivacyState:
    """The noise and the key of a private run; those of a run that was begun stay.

    Raises:
        RecipeError: the budget does not allow the steps, or a sequence would come by more than one way.
    """
    from plinth.tokens.order.order import Order
    from plinth_extras.privacy import secret
    from plinth_extras.privacy.accounting import resolved_apart

    if given.earlier is not None and (known := of(given.earlier, "privacy", PrivacyState)) is not None:
        return known
    planted = given.canaries is not None
    if planted or Order(given.mixture).repeats:
        raise RecipeError(
            "training.privacy needs every sequence once in the mixture",
            found="canaries, whose copies are planted to be seen" if planted else "a bucket of more than one epoch",
            expected="no canaries, and mixture.total_tokens that no bucket has to repeat itself for",
        )
    rate = 1 / given.total_steps
    found = resolved_apart(params, rate, given.total_steps)
    return PrivacyState(
        epsilon=params.epsilon,
        delta=params.delta,
        clip_norm=params.clip_norm,
        noise_multiplier=found["noise_multiplier"],
        sample_rate=rate,
        secret_sha256=secret.make(given.ctx.workspace, given.run_id),
    )


def draws(config: RunConfig, state: PrivacyState) -> Steps:
    """The positions that each step takes: they follow from the run's key.

    Raises:
        SignatureError: the key is not on this machine.
    """
    from plinth.storage.workspace import Workspace
    from plinth.tokens.order.poisson import PoissonSteps
    from plinth_extras.privacy import secret

    own = config.steps
    key = secret.read(Workspace(config.workspace), config.run_id, state.secret_sha256)
    return PoissonSteps(own.sequences, own.sequence_tokens, own.stretches, key)


def facts(history: History | None, monitor: Mapping[str, Any]) -> dict[str, Any]:
    """The budget that a private run has spent, as its committed checkpoint states it."""
    return {"privacy": monitor}


HOOK = TrainingHook(
    name="privacy",
    params=Privacy,
    state=PrivacyState,
    rank=late("plinth_extras.privacy.gradients:PrivateRun"),
    problems=problems,
    prepare=prepare,
    draws=draws,
    facts=facts,
    undivided=UNDIVIDED,
    one_by_one=True,
    position=3,
)
