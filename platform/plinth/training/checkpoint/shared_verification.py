"""Verification that all ranks share: each compares its part of a checkpoint, and all agree on the outcome.

    leading rank    select_checkpoint ── candidate ──▶ every rank: verify_share ── outcomes ──▶ refused, or chosen
    the others      answer candidates until the leading rank has chosen

Does not belong here: which checkpoint is a candidate (selection), the comparison (checkpoint.verify_share).
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from plinth.errors import PlinthError
from plinth.training.checkpoint import checkpoint
from plinth.training.checkpoint.selection import select_checkpoint
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.engine.ranks import Rank
from plinth.training.guard.records import Intervention
from plinth.training.rank_failure import RankFailure
from plinth.training.telemetry.timeline import Pulse, Timeline


class SharedVerification:
    """The ranks of a run, as they verify its checkpoints together. Its public methods are collectives."""

    def __init__(self, config: RunConfig, rank: Rank) -> None:
        self.config, self.rank = config, rank
        self._pulse = Pulse(config.directory.events)

    def select(self, events: Timeline) -> tuple[int | None, list[Intervention]]:
        """The newest checkpoint that no rank refuses, and the rollbacks of the run; the same on every rank.

        Raises:
            CheckpointError: checkpoints are committed, and none can be trusted; on every rank.
            SignatureError: no root of trust is pinned on a machine; on every rank.
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
        """Verify one committed checkpoint, of this run or of another.

        Raises:
            CheckpointError, SignatureError: that of the first rank that refuses it; on every rank.
        """
        failure: RankFailure | None = None
        try:
            checkpoint.verify_share(run or self.config.directory, step, self.rank.index, self.rank.world, self._pulse)
        except PlinthError as error:
            failure = RankFailure.of(error)
        failures: list[RankFailure | None] = [None] * self.rank.world
        dist.all_gather_object(failures, failure)
        first = next((one for one in failures if one is not None), None)
        if first is not None:
            raise first.error()

    def _ask(self, run: RunDirectory, step: int) -> None:
        """On the leading rank: have every rank verify its share of a candidate."""
        _sent(step)
        self.verify(step)

    def _answer(self) -> tuple[int | None, list[Intervention]]:
        """On the others: verify candidates until the choice comes; a refusal is the leading rank's to act on."""
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
                del error  # every rank got the same; the leading one refuses the candidate, or ends the selection


def _sent(value: Any) -> Any:
    """The leading rank's value, on every rank."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
