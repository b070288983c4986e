"""Selection of the checkpoint to resume from, and retention of checkpoints.

Resume uses the newest checkpoint that verifies and was not trained on skipped windows. Retention keeps the newest and
the best checkpoints, every n-th checkpoint, the audited and the final checkpoint, and all that are not uploaded yet.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from statistics import fmean

from plinth.training.checkpoint import checkpoint
from plinth.training.checkpoint.shares import SharedCheckpoints
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.guard.rules import Intervention
from plinth.training.parameters.run import Checkpoints
from plinth.training.shared_run.head import SESSION
from plinth.training.telemetry.timeline import Timeline, timeline

# Selection: the newest checkpoint that verifies and was not trained on a window skipped since.
#
# The leading rank selects when a run starts and when the guard rolls back; every rank verifies its share of the
# candidate, and all receive the step (resume). A rollback is flushed to the timeline before loading, so a run that is
# killed during a rollback continues with it.


def select_checkpoint(
    config: RunConfig, events: Timeline, check: Callable[[RunDirectory, int], object] = checkpoint.verify
) -> tuple[int | None, list[Intervention]]:
    """Delete leftovers, then return the newest checkpoint that passes `check`, and the rollbacks. Only the leading rank
    calls this.

    A checkpoint is rejected if it was trained on the data of a skipped window. Its step is then within or after the
    window, and it was saved before the skip.

    Raises:
        CheckpointError: checkpoints are committed, but none can be trusted.
        SignatureError: no root of trust is pinned on this machine.
    """
    run = config.directory
    checkpoint.clean(run)
    rollbacks = rollbacks_of(config)
    while True:
        step, refused = checkpoint.newest_valid(run, check)
        for bad, why in refused:
            events.append("refused", step=bad, checkpoint=checkpoint.name(bad), reason=str(why), durable=True)
            _refuse(run, bad)
        rollback = None if step is None else _unknown_rollback(config, step, rollbacks)
        if step is None or rollback is None:
            return step, rollbacks
        reason = (
            f"the checkpoint was trained on steps {rollback.first} to {rollback.last}, which rollback "
            f"{rollback.number} skips"
        )
        events.append("refused", step=step, checkpoint=checkpoint.name(step), reason=reason, durable=True)
        _refuse(run, step)


def _refuse(run: RunDirectory, step: int) -> None:
    """Reject a checkpoint on this machine, and in the bucket if the leading rank of a shared run does so."""
    session = os.environ.get(SESSION)
    if session:
        SharedCheckpoints(run, session).drop([step])
    checkpoint.refuse(run, step)


def rollbacks_of(config: RunConfig) -> list[Intervention]:
    """Return all rollbacks of the run, from its timeline."""
    events = timeline(config.directory.events).of("intervention")
    return [Intervention.of(event) for event in events if event["action"] == "rollback"]


def _unknown_rollback(config: RunConfig, step: int, rollbacks: list[Intervention]) -> Intervention | None:
    """Return the rollback that skips a window on which the checkpoint was trained, or None."""
    known = {made["number"] for made in checkpoint.read_state(config.directory, step)["monitor"]["guard"]["rollbacks"]}
    return next((made for made in rollbacks if made.first <= step and made.number not in known), None)


# Retention: the last, every n-th, the best, audited, final, and not yet uploaded checkpoints are kept.
#
# The record of a checkpoint is unlinked before its bytes, so a kill at any moment leaves no partial checkpoint;
# remaining bytes are deleted by the next `checkpoint.clean`.


def kept(policy: Checkpoints, steps: list[int], scores: dict[int, float], always: set[int]) -> set[int]:
    """Return the committed steps whose checkpoints the policy keeps. `steps` is sorted, oldest first; lower `scores`
    are better."""
    staying = set(steps[-policy.keep_last :]) | (always & set(steps))
    if policy.keep_every:
        staying |= {step for step in steps if step % policy.keep_every == 0}
    if policy.keep_best:
        ranked = sorted((scores[step], step) for step in steps if step in scores)
        staying |= {step for _, step in ranked[: policy.keep_best]}
    return staying


def retain(run: RunDirectory, policy: Checkpoints, always: set[int]) -> list[int]:
    """Delete the checkpoints that the retention policy does not keep, and return the deleted steps.

    If checkpoints are uploaded, a checkpoint that is not in the bucket yet is kept, whatever its age.
    """
    steps = checkpoint.committed(run)
    staying = kept(policy, steps, scores(run, steps) if policy.keep_best else {}, always)
    doomed = [step for step in steps if step not in staying and not _awaits_upload(run, policy, step)]
    for step in doomed:
        checkpoint.delete(run, step)
    return doomed


def free_space(run: RunDirectory, policy: Checkpoints, always: set[int], needed: int) -> list[int]:
    """Delete checkpoints that are kept only until their upload, oldest first, until `needed` bytes are free."""
    steps = checkpoint.committed(run)
    staying = kept(policy, steps, scores(run, steps) if policy.keep_best else {}, always)
    deleted = []
    for step in steps:
        if shutil.disk_usage(run.root).free >= needed:
            break
        if step not in staying:
            checkpoint.delete(run, step)
            deleted.append(step)
    return deleted


def scores(run: RunDirectory, steps: list[int]) -> dict[int, float]:
    """Return a score per checkpoint: its mean bits per byte of held-out slices or, without slices, its smoothed loss.

    If any checkpoint has held-out slices, only slices are used, and checkpoints without slices have no score.
    """
    monitors = {step: checkpoint.read_state(run, step).get("monitor", {}) for step in steps}
    by_slices = {step: fmean(monitor["slices"].values()) for step, monitor in monitors.items() if monitor.get("slices")}
    by_loss = {step: float(m["loss_ema"]) for step, m in monitors.items() if m.get("loss_ema") is not None}
    return by_slices or by_loss


def _awaits_upload(run: RunDirectory, policy: Checkpoints, step: int) -> bool:
    return policy.upload is not None and not checkpoint.is_uploaded(run, step)
