"""A run that has begun gets another global batch, or rows of another length, for the steps it has not taken yet.

    recipe: training.changes += {from_step, global_batch_sequences and/or sequence_tokens, reason}
    the job saves and stops -> the steps that it took are compared -> event `amended` -> the job goes on

The run keeps its id and its checkpoints: the identity of a checkpoint covers the steps up to it, so those before the
amendment stay valid and those after it carry it. A change that touches a step already taken is refused.

Does not belong here: how a job is stopped and started (`job`).
"""

from __future__ import annotations

from plinth.errors import MissingError, RecipeError
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.telemetry.timeline import Timeline, read_events


def current(config: RunConfig) -> RunConfig | None:
    """The configuration that the run's jobs use, or None before the first."""
    try:
        return configuration.load(config.directory.config)
    except MissingError:
        return None


def pending(config: RunConfig) -> bool:
    """Whether the recipe has other amendments than the configuration of the run's jobs."""
    known = current(config)
    return known is not None and known.amendments != config.amendments


def reached(config: RunConfig) -> int:
    """The last step on the timeline or in a checkpoint."""
    events = read_events(config.directory.events)
    last = max((int(event["step"]) for event in events if event["event"] == "step"), default=0)
    return max([last, *checkpoint.committed(config.directory)])


def check(config: RunConfig) -> None:
    """Refuse an amendment of steps that were taken.

    Raises:
        RecipeError: a step that was taken would have been another, or the run would end before its resume proof.
    """
    known, done = current(config), reached(config)
    if known is None:
        return
    if known.steps.through(done) != config.steps.through(done):
        raise RecipeError(
            f"amendments in training.changes touch steps that run {config.run_id} has taken",
            found=f"steps up to {done}, with batches of {_batches_in_words(known, done)}",
            expected=f"the same up to step {done}; found {_batches_in_words(config, done)}",
            remedy=f"amend from step {done + 1} on, with room for the steps until the job has stopped; what was taken "
            "stays as it was",
        )
    if config.audit_step <= done:
        raise RecipeError(
            f"amendments in training.changes leave run {config.run_id} too short for the proof of its resume",
            found=f"{config.total_steps} steps, of which {done} are taken",
            expected=f"step {config.audit_step}, from which the end is replayed, still to come",
            remedy="amend earlier",
        )


def record(config: RunConfig) -> None:
    """Log the amendment on the timeline, then write the configuration."""
    known, done = current(config), reached(config)
    Timeline(config.directory.events).append(
        "amended",
        step=done,
        batches=config.steps.through(config.total_steps),
        before=known.steps.through(known.total_steps) if known else [],
        total_steps=config.total_steps,
        reason="; ".join(amendment.reason for amendment in config.amendments),
        durable=True,
    )
    configuration.write(config)


def _batches_in_words(config: RunConfig, done: int) -> str:
    parts = [
        f"{batch}{'' if length == config.sequence_tokens else f' in rows of {length} tokens'} from step {first + 1}"
        for first, batch, length in config.steps.through(done)
    ]
    return ", ".join(parts) or "none"
