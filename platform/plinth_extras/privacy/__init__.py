"""Differentially private training (DP-SGD, Abadi et al., arXiv:1607.00133). Reports the epsilon of a run's weights.

    secret ─► sampling of sequences (tokens.order.poisson) ─► clipped gradient of each ─► sum ─► noise ─► update
       └──────────────────────────────────────────────────────────────────────────────────────────────┘

    accounting   epsilon for a number of steps, and noise for an epsilon, from Opacus in a separate process
    gradients    sum of clipped gradients with noise (imports torch)

The unit of privacy is a sequence of the shards. Does not belong here: the optimizer step (engine).

Also here: the section `training.privacy` of a recipe with its checks, the key of a private run, and the training hook,
which samples sequences and adds noise.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from plinth.errors import RecipeError, SignatureError
from plinth.extensions import late
from plinth.records import Frozen
from plinth.sections import RecipeSection, of
from plinth.storage import atomic
from plinth.storage.atomic import write_bytes
from plinth.storage.workspace import Workspace
from plinth.training.hooks import TrainingHook
from plinth.training.parameters.parallel import not_with

if TYPE_CHECKING:
    from plinth.tokens.order.steps import Steps
    from plinth.training.config import RunConfig
    from plinth.training.parameters.run import Training
    from plinth.training.preparation import Preparation
    from plinth.training.telemetry.timeline import History

#: Unit of the privacy guarantee.
UNIT = "sequence"


class Privacy(Frozen):
    """DP-SGD with an (epsilon, delta) guarantee for each sequence of the shards."""

    epsilon: float = Field(gt=0, description="Privacy budget (epsilon). Training stops before a step would exceed it.")
    delta: float = Field(
        gt=0, lt=1, description="Delta of the guarantee; usually below 1 / (number of sequences in the mixture)."
    )
    clip_norm: float = Field(1.0, gt=0, description="Clipping norm of each sequence's gradient.")
    noise_multiplier: float | None = Field(
        None,
        gt=0,
        description="Standard deviation of the noise, in units of clip_norm. Default: the minimum for `epsilon`.",
    )


class PrivacyState(Frozen):
    """Resolved privacy parameters of a run."""

    epsilon: float
    delta: float
    clip_norm: float
    noise_multiplier: float
    sample_rate: float = Field(description="Probability that a step samples a sequence.")
    secret_sha256: str = Field(description="SHA-256 of the key for sampling and noise.")


SECTION = RecipeSection(name="training.privacy", model=Privacy, description="Differential privacy; off by default.")
STATE = RecipeSection(name="run.privacy", model=PrivacyState, description="Privacy parameters of the run.")


# Key of a private run, which determines its sampling and noise.
#
#     <trust folder>/privacy/<run_id>.key   32 random bytes, readable only by its owner, outside the workspace
#
# With the key, the noise can be recomputed and removed, so it must stay secret from everyone who must not learn about
# the text; the run's configuration has only its SHA-256. A resume and the audit need it. Without it, the run can
# neither be audited nor listed by step, and the noise cannot be removed.

KEY_BYTES = 32


def key_path(workspace: Workspace, run_id: str) -> Path:
    """Return the path of a run's privacy key on this machine."""
    return workspace.trust_folder / "privacy" / f"{run_id}.key"


def make_key(workspace: Workspace, run_id: str) -> str:
    """Return the commitment to a run's privacy key. The key is generated if it is missing."""
    path = key_path(workspace, run_id)
    with atomic.locked(path.with_suffix(".lock")):
        if not path.exists():
            write_bytes(path, secrets.token_bytes(KEY_BYTES), mode=0o600)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_key(workspace: Workspace, run_id: str, committed: str) -> bytes:
    """Return the privacy key that the run was started with.

    Raises:
        SignatureError: this machine has no key for the run, or has a different key.
    """
    path = key_path(workspace, run_id)
    found = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(found).hexdigest() != committed:
        raise SignatureError(
            f"the privacy key of run {run_id} is not on this machine",
            found=f"another key in {path}" if found else f"no {path}",
            expected=f"{KEY_BYTES} bytes with SHA-256 {committed[:12]}…",
            remedy="copy the key securely from the machine that started the run; another key voids the guarantee",
        )
    return found


def noise_seed(key: bytes, step: int, name: str) -> int:
    """Return the 63-bit seed of the noise on a parameter's gradient in a step."""
    return int.from_bytes(hmac.digest(key, f"noise/{step}/{name}".encode(), hashlib.sha256)[:8]) >> 1


UNDIVIDED = ("tensor", "sequence", "pipeline", "zero_stage", "offload")


def problems(training: Training, params: Privacy) -> Iterator[str]:
    """Yield settings that use the text without noise, or that break an assumption of the privacy accountant."""
    divided = not_with(training.parallel, undivided=UNDIVIDED)
    wrong = {
        **{f"parallel.{name} {getattr(training.parallel, name)}": True for name in divided},
        "precision fp16": training.precision == "fp16",
        f"float8 {training.float8}": training.float8 != "none",
        "changes of batch size or sequence length": bool(
            training.batch_schedule or training.length_schedule or training.amendments
        ),
        "guard.enabled, whose verdicts depend on losses without noise": training.guard.enabled,
        "stopping.plateau or checkpoints.keep_best, which depend on losses without noise": bool(
            training.stopping.plateau or training.checkpoints.keep_best
        ),
        "model.experts.balancing loss_free, whose biases depend on loads without noise": (
            training.model.experts is not None and training.model.experts.balancing == "loss_free"
        ),
        "distillation": getattr(training, "distillation", None) is not None,
        **{f"extensions.{name}": True for name in training.extensions},
    }
    found = [name for name, holds in wrong.items() if holds]
    if found:
        yield (
            f"privacy cannot be combined with {'; '.join(found)}: expected ZeRO stage 0 or 1 over data ranks, and no "
            "guard"
        )


def prepare(given: Preparation, params: Privacy) -> PrivacyState:
    """Resolve the noise and key of a private run. A run that has started keeps its noise and key.

    Raises:
        RecipeError: the budget does not allow the number of steps, or a sequence could occur more than once.
    """
    from plinth.tokens.order.order import Order
    from plinth_extras.privacy.accounting import resolved_apart

    if given.earlier is not None and (known := of(given.earlier, "privacy", PrivacyState)) is not None:
        return known
    planted = given.canaries is not None
    if planted or Order(given.mixture).repeats:
        raise RecipeError(
            "training.privacy allows each sequence only once in the mixture",
            found="canaries, which have repeated copies" if planted else "a bucket with more than one epoch",
            expected="no canaries, and a `mixture.total_tokens` for which no bucket is repeated",
        )
    rate = 1 / given.total_steps
    found = resolved_apart(params, rate, given.total_steps)
    return PrivacyState(
        epsilon=params.epsilon,
        delta=params.delta,
        clip_norm=params.clip_norm,
        noise_multiplier=found["noise_multiplier"],
        sample_rate=rate,
        secret_sha256=make_key(given.ctx.workspace, given.run_id),
    )


def draws(config: RunConfig, state: PrivacyState) -> Steps:
    """Return the sequence positions of each step, sampled with the run's privacy key.

    Raises:
        SignatureError: the key is not on this machine.
    """
    from plinth.tokens.order.order import PoissonSteps

    own = config.steps
    key = read_key(Workspace(config.workspace), config.run_id, state.secret_sha256)
    return PoissonSteps(own.sequences, own.sequence_tokens, own.stretches, key)


def facts(history: History | None, monitor: Mapping[str, Any]) -> dict[str, Any]:
    """Return the privacy budget that a run has spent, according to its committed checkpoint."""
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
