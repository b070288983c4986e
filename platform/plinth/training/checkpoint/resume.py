"""Collective steps before a checkpoint is loaded: all ranks verify it together, and the parent's optimizer state is
restored on request.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from plinth.errors import CheckpointError, PlinthError
from plinth.storage.state import Refs
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint, snapshot, universal
from plinth.training.checkpoint.selection import select_checkpoint
from plinth.training.checkpoint.shares import fetch_share
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.engine.engine import TrainingEngine
from plinth.training.engine.ranks import Rank
from plinth.training.guard.rules import Intervention
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.shared_run.shipping import is_shared
from plinth.training.telemetry.timeline import Pulse, RankFailure, Timeline

# Shared verification: each rank compares its share of a checkpoint's bytes, and all agree on the outcome.
#
#     leading rank    select_checkpoint ── candidate ──▶ every rank: verify_share ── outcomes ──▶ refused, or chosen
#     the others      answer candidates until the leading rank has chosen
#
# Does not belong here: which checkpoint is a candidate (selection), the comparison (checkpoint.verify_share).


class SharedVerification:
    """Verification of checkpoints by all ranks of a run together. Its public methods are collectives."""

    def __init__(self, config: RunConfig, rank: Rank) -> None:
        self.config, self.rank = config, rank
        self._pulse = Pulse(config.directory.events)

    def select(self, events: Timeline) -> tuple[int | None, list[Intervention]]:
        """Return the newest checkpoint that every rank accepts, and the rollbacks of the run. All ranks return the
        same.

        Raises:
            CheckpointError: checkpoints are committed, but none can be trusted. It is raised on every rank.
            SignatureError: no root of trust is pinned on a machine. It is raised on every rank.
        """
        if not self.rank.leads:
            return self._answer()
        try:
            chosen = select_checkpoint(self.config, events, self._ask)
        except PlinthError as error:
            _sent(RankFailure.of(error))
            raise
        _sent(chosen)
        return chosen

    def verify(self, step: int, run: RunDirectory | None = None) -> None:
        """Verify one committed checkpoint of this run or of another run.

        Raises:
            CheckpointError, SignatureError: the error of the first rank that rejects the checkpoint. Every rank raises
                it.
        """
        given = run or self.config.directory
        if is_shared(given):
            self._together(lambda: self._fetch(given, step))
        self._together(lambda: self._verify(given, step))

    def _fetch(self, run: RunDirectory, step: int) -> None:
        """Fetch the files of this machine's ranks, if this is its first rank."""
        if os.environ["LOCAL_RANK"] == "0":
            first = self.rank.index
            fetch_share(self.config, run, step, range(first, first + int(os.environ["LOCAL_WORLD_SIZE"])))

    def _verify(self, run: RunDirectory, step: int) -> None:
        """Verify this rank's share. If it is damaged on this machine, fetch it from the bucket of a shared run first:
        the others' copies are good."""
        try:
            checkpoint.verify_share(run, step, self.rank.index, self.rank.world, self._pulse)
        except CheckpointError:
            if not is_shared(run):
                raise
            fetch_share(self.config, run, step, range(self.rank.index, self.rank.index + 1), compare=True)
            checkpoint.verify_share(run, step, self.rank.index, self.rank.world, self._pulse)

    def _together(self, work: Callable[[], object]) -> None:
        """Do this rank's work. If it fails on any rank, every rank raises the error of the first one."""
        failure: RankFailure | None = None
        try:
            work()
        except PlinthError as error:
            failure = RankFailure.of(error)
        failures: list[RankFailure | None] = [None] * self.rank.world
        dist.all_gather_object(failures, failure)
        first = next((one for one in failures if one is not None), None)
        if first is not None:
            raise first.error()

    def _ask(self, run: RunDirectory, step: int) -> None:
        """Tell every rank to verify its files of a candidate checkpoint. Only the leading rank calls this."""
        _sent(step)
        self.verify(step)

    def _answer(self) -> tuple[int | None, list[Intervention]]:
        """Verify the checkpoints that the leading rank proposes until it has chosen one, and return its choice."""
        while True:
            said = _sent(None)
            if isinstance(said, RankFailure):
                raise said.error()
            if not isinstance(said, int):
                step, rollbacks = said
                return step, rollbacks
            try:
                self.verify(said)
            except PlinthError as error:
                del error  # every rank got the same error; the leading rank handles it


def _sent(value: Any) -> Any:
    """Broadcast the leading rank's value to every rank."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


# Optimizer state of the parent run: FP32 masters and moments, on any layout of ranks.
#
# It is read once, before the first step; later commits contain it. Step counters restart at 0, except the optimizer's
# own counter, which its bias correction needs.


def restore(engine: TrainingEngine) -> None:
    """Restore the parent's optimizer state if the recipe asks for it; otherwise do nothing. All ranks must call this.

    Raises:
        CheckpointError: the parent's checkpoint is missing, was changed, or lacks a parameter's state.
        SignatureError: no root of trust is pinned on this machine.
    """
    begun = engine.config.initial
    if begun is None or begun.optimizer == "fresh":
        return
    initial = Refs(Workspace(engine.config.workspace)).load(begun.manifest)
    run = RunDirectory(Path(engine.config.workspace) / "runs" / str(initial.stats.get("run_id", "")))
    step = int(initial.stats.get("step", 0))
    _verify(engine, run, step)
    _require_same_kind(engine.config.optimizer, configuration.load(run.config).optimizer)
    beat = Pulse(engine.config.directory.events)
    needed = snapshot.ranks_needed(engine, step, beat, run)
    universal.restore(engine, checkpoint.path(run, step) / "engine", needed, beat)
    for name in universal.COUNTERS:
        setattr(engine.deepspeed, name, 0)


def _require_same_kind(ours: Optimizer, theirs: Optimizer) -> None:
    """Raise an error if the optimizer or its weight average differs from the parent's, because the parent's state would
    then have other tensors."""
    kinds = [(one.kind, dict(one.options), one.ema_decay is not None) for one in (ours, theirs)]
    if kinds[0] != kinds[1]:
        found, expected = (f"{kind} {options or ''}{' with a mean of weights' * mean}" for kind, options, mean in kinds)
        raise CheckpointError(
            "the optimizer state of the parent checkpoint belongs to another optimizer than the run's",
            found=expected,
            expected=found,
            remedy="set `training.optimizer` to the optimizer of the parent run, or set `training.initial.optimizer: "
            "fresh`",
        )


def _verify(engine: TrainingEngine, run: RunDirectory, step: int) -> None:
    """Compare this rank's files of the checkpoint with their signed digests. If any rank finds a difference, every rank
    raises an error."""
    try:
        SharedVerification(engine.config, engine.rank).verify(step, run)
    except CheckpointError as error:
        raise CheckpointError(
            "the optimizer state of the parent checkpoint is not available",
            found=error.what,
            expected=f"{checkpoint.name(step)} in {run.checkpoints}",
            remedy="restore the parent's checkpoint, or set `training.initial.optimizer: fresh`",
        ) from error
