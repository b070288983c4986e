"""Retention: checkpoints stay if they are the last, every n-th, the best, audited, final, or not uploaded yet.

The record of a checkpoint is unlinked before its bytes, so that a kill at any moment leaves no checkpoint that is half
there; remaining bytes are deleted by the next `checkpoint.clean`.
"""

from __future__ import annotations

import shutil
from statistics import fmean

from plinth.training.checkpoint import checkpoint
from plinth.training.directory import RunDirectory
from plinth.training.parameters.checkpoints import Checkpoints


def kept(policy: Checkpoints, steps: list[int], scores: dict[int, float], always: set[int]) -> set[int]:
    """Steps to keep of those committed (oldest first); by `scores` lower is better."""
    staying = set(steps[-policy.keep_last :]) | (always & set(steps))
    if policy.keep_every:
        staying |= {step for step in steps if step % policy.keep_every == 0}
    if policy.keep_best:
        ranked = sorted((scores[step], step) for step in steps if step in scores)
        staying |= {step for _, step in ranked[: policy.keep_best]}
    return staying


def retain(run: RunDirectory, policy: Checkpoints, always: set[int]) -> list[int]:
    """Delete what the policy does not keep; returns the deleted steps.

    Where checkpoints are uploaded, one that is not yet there stays, whatever its age.
    """
    steps = checkpoint.committed(run)
    staying = kept(policy, steps, scores(run, steps) if policy.keep_best else {}, always)
    doomed = [step for step in steps if step not in staying and not _awaits_upload(run, policy, step)]
    for step in doomed:
        checkpoint.delete(run, step)
    return doomed


def free_space(run: RunDirectory, policy: Checkpoints, always: set[int], needed: int) -> list[int]:
    """Delete checkpoints that only wait for their upload, oldest first, until so many bytes are free."""
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
    """The score of each checkpoint: the mean bits per byte of its held-out slices, or else its smoothed loss.

    Slices decide as soon as one checkpoint has them; one without then has no score.
    """
    monitors = {step: checkpoint.read_state(run, step).get("monitor", {}) for step in steps}
    by_slices = {step: fmean(monitor["slices"].values()) for step, monitor in monitors.items() if monitor.get("slices")}
    by_loss = {step: float(m["loss_ema"]) for step, m in monitors.items() if m.get("loss_ema") is not None}
    return by_slices or by_loss


def _awaits_upload(run: RunDirectory, policy: Checkpoints, step: int) -> bool:
    return policy.upload is not None and not checkpoint.is_uploaded(run, step)
