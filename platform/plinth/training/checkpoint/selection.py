"""Checkpoint selection: the newest that verifies and has trained on no window that was left out since.

The leading rank selects when a run starts, and when the guard rolls it back; every rank verifies its share of the
candidate, and all learn the step (shared_verification).
Rollbacks are kept on the timeline: one is flushed to it before anything is loaded, so that a run that is killed during
a rollback continues with it.
"""

from __future__ import annotations

from collections.abc import Callable

from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.guard.records import Intervention
from plinth.training.telemetry.timeline import Timeline, timeline


def select_checkpoint(
    config: RunConfig, events: Timeline, check: Callable[[RunDirectory, int], object] = checkpoint.verify
) -> tuple[int | None, list[Intervention]]:
    """On the leading rank: clean up, then the newest checkpoint that `check` does not refuse.

    A checkpoint that was saved within or after a window, before that window was left out, was trained on it. Its
    state lacks the rollback, and it is refused.

    Raises:
        CheckpointError: checkpoints are committed, and none can be trusted.
        SignatureError: no root of trust is pinned on this machine.
    """
    run = config.directory
    checkpoint.clean(run)
    rollbacks = rollbacks_of(config)
    while True:
        step, refused = checkpoint.newest_valid(run, check)
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
