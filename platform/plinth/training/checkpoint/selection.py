"""Checkpoint selection: the newest that verifies and has trained on no window that was left out since.

The leading rank selects when a run starts, and when the guard rolls it back, and sends the step to all ranks.
Rollbacks are kept on the timeline: one is flushed to it before anything is loaded, so that a run that is killed during
a rollback continues with it.
"""

from __future__ import annotations

from plinth.errors import CheckpointError
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.guard.records import Intervention
from plinth.training.telemetry.timeline import Timeline, timeline


def select_checkpoint(config: RunConfig, events: Timeline) -> tuple[int | None, list[Intervention]] | CheckpointError:
    """On the leading rank: clean up, then the newest checkpoint to trust. Errors go to all ranks.

    A checkpoint that was saved within or after a window, before that window was left out, was trained on it. Its
    state lacks the rollback, and it is refused.
    """
    run = config.directory
    checkpoint.clean(run)
    rollbacks = rollbacks_of(config)
    while True:
        try:
            step, refused = checkpoint.newest_valid(run)
        except CheckpointError as error:
            return error
        for bad, why in refused:
            events.append("refused", step=bad, checkpoint=checkpoint.name(bad), reason=str(why), durable=True)
            checkpoint.refuse(run, bad)
        rollback = None if step is None else _unknown_rollback(config, step, rollbacks)
        if step is None or rollback is None:
            return step, rollbacks
        reason = (
            f"it has learnt from steps {rollback.first} to {rollback.last}, which rollback {rollback.number} leaves out"
        )
        events.append("refused", step=step, checkpoint=checkpoint.name(step), reason=reason, durable=True)
        checkpoint.refuse(run, step)


def rollbacks_of(config: RunConfig) -> list[Intervention]:
    """Every rollback of the run, from its timeline."""
    events = timeline(config.directory.events).of("intervention")
    return [Intervention.of(event) for event in events if event["action"] == "rollback"]


def _unknown_rollback(config: RunConfig, step: int, rollbacks: list[Intervention]) -> Intervention | None:
    """The rollback whose window a checkpoint's parameters have seen."""
    known = {made["number"] for made in checkpoint.read_state(config.directory, step)["monitor"]["guard"]["rollbacks"]}
    return next((made for made in rollbacks if made.first <= step and made.number not in known), None)
