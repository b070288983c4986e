"""Trainer of a team's own: the command that replaces Plinth's loop on each rank.

Put code that such a trainer calls into `plinth.sdk`. This module only describes and checks the recipe's section.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pydantic import Field

from plinth import fingerprint
from plinth.errors import TrainingError
from plinth.records import Frozen

#: Statement of a candidate about its resume, because only sampled losses of this trainer's runs are replayed.
UNPROVED: Final = "not proved by this trainer"

#: Folder of a checkpoint with the files of the trainer, as it wrote them.
FOLDER: Final = "trainer"

#: Option of the supervisor with the digest of the submitted command.
OPTION: Final = "--trainer"


class ExternalTrainer(Frozen):
    """Program that trains instead of Plinth's loop. It uses `plinth.sdk` for data, events and checkpoints."""

    command: tuple[str, ...] = Field(
        min_length=1,
        description="Command and arguments, started once per rank with torchrun's variables, in an empty folder. Part "
        "of the run's identity.",
    )


def unsupported(training: Any, hooks: tuple[str, ...]) -> Iterator[str]:
    """Yield the keys of a `training` section that an external trainer cannot follow.

    Args:
        training: the section, a `Training`.
        hooks: names of the training hooks that the section sets.
    """
    keys = ("initial", "validation", "length_schedule", "rotary_schedule", "deepspeed")
    yield from (key for key in keys if getattr(training, key))
    if training.recovery.enabled:
        yield "recovery"
    if training.replay_checks is not None:
        yield "replay_checks"
    if training.checkpoints.average is not None:
        yield "checkpoints.average"
    if training.model.mup is not None:
        yield "model.mup"
    yield from hooks


def require_own_loop(trainer: ExternalTrainer | None, what: str) -> None:
    """Check that Plinth's loop trained a run, because only its state can be read and replayed.

    Raises:
        TrainingError: an external trainer trained the run.
    """
    if trainer is not None:
        raise TrainingError(
            f"{what} is not possible for a run of your own trainer",
            found=" ".join(trainer.command),
            expected="a run of Plinth's loop, whose optimizer state Plinth can read",
            remedy="use the trainer's own tools; the gate policy decides about a resume that is not proved",
        )


def option(trainer: ExternalTrainer | None) -> list[str]:
    """Return the supervisor's arguments that bind a job to the submitted command. A run with Plinth's loop has none."""
    return [] if trainer is None else [OPTION, fingerprint.digest(trainer)]


def require_submitted(trainer: ExternalTrainer | None, arguments: list[str]) -> None:
    """Check that the trainer's command is the one that was submitted.

    The run's configuration is in the workspace, whose writers must not decide which program runs.

    Raises:
        TrainingError: the configuration has another command than the job.
    """
    if option(trainer) != arguments:
        raise TrainingError(
            "the trainer's command was changed after the job was submitted",
            found="no trainer" if trainer is None else " ".join(trainer.command),
            expected="the command whose digest the job was submitted with",
            remedy="find out who wrote config.json in the run's folder, then run `plinth run` again",
        )
