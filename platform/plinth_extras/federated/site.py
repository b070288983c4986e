"""Rounds of one site: send the weights, wait for the common weights, and continue from the common weights.

    last inner step ─► every rank writes its share of the FP32 masters ─► one signed record ─► wait ─► adopt

The optimizer state stays with the site, as in DiLoCo. If a site is late, the round is committed without this site. The
site then loses its inner steps of that round, and continues from the newest common weights.

The record that a run adopts after a step is kept next to its checkpoints (`federated/step-00000500.json`, signed by
the coordinator), so that a resume, a rollback and the audit adopt the same weights. Each rank reads its own shard.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from plinth.errors import MissingError, PlinthError
from plinth.records import Blob
from plinth.storage.atomic import write_bytes
from plinth.storage.workspace import Workspace
from plinth.training.checkpoint import checkpoint, sharded_state, universal
from plinth.training.config import RunConfig
from plinth.training.engine.engine import TrainingEngine
from plinth.training.engine.ranks import Rank
from plinth.training.rank_hook import RankHook
from plinth.training.telemetry.timeline import Pulse, RankFailure
from plinth.trust.root import Trust
from plinth_extras.federated.exchange import Contribution, Exchange, Federated, Round, now

POLL_S = 1.0


class Site(RankHook):
    """Training hook that runs the federated rounds on one rank of a site."""

    engine: TrainingEngine

    def __init__(self, config: RunConfig, rank: Rank, params: Federated, poll_s: float = POLL_S) -> None:
        self.config, self.params, self.rank, self._poll_s = config, params, rank, poll_s
        self.exchange = Exchange(params.exchange, Trust.of(Workspace(config.workspace)))
        self.beat = Pulse(config.directory.events)
        self.reset()

    def attach(self, engine: TrainingEngine) -> None:
        self.engine = engine

    def reset(self) -> None:
        """Reset to the state before the first round."""
        self._round, self._common, self._adopted = -1, "", -1

    def state(self) -> dict[str, Any]:
        """Return the round of the current common weights, and the step after which they were adopted."""
        return {"round": self._round, "common": self._common, "step": self._adopted}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the hook's state from a checkpoint."""
        self._round, self._common, self._adopted = state["round"], state["common"], state["step"]

    def due(self, step: int) -> bool:
        """Return True if a round ends after this step and the run has not adopted its common weights yet."""
        return self.params.ends_round(step, self.config.total_steps) and self._adopted < step

    def settle(self, step: int, asked_to_stop: Callable[[], int]) -> tuple[str, dict[str, Any]] | int:
        """Send the weights, wait for the round, and adopt the common weights. All ranks must call this method.

        Return the event to log, or the signal that ended the wait.

        Args:
            asked_to_stop: returns the signal that this rank has received, or 0.

        Raises:
            CheckpointError, IntegrityError, MissingError, StorageError: the exchange cannot be used (on every rank).
        """
        if not self._on_all(self._path(step).exists, lead=True):
            wanted = self._round + 1
            if self._on_all(lambda: self.exchange.newest() < wanted and not self._has_sent(wanted), lead=True):
                self._send(step, wanted)
            while self._on_all(self.exchange.newest, lead=True) < wanted:
                signals: list[int] = [0] * dist.get_world_size()
                dist.all_gather_object(signals, asked_to_stop())
                if max(signals):
                    return max(signals)
                self.beat()
                time.sleep(self._poll_s)
            self._on_all(lambda: self._keep(step), lead=True)
        made = self.adopt(step)
        ours = made.taken.get(self.params.site)
        return "averaged", {
            "round": made.round,
            "sites": sorted(made.taken),
            "missing": list(made.missing),
            "refused": dict(made.refused),
            "common": made.common.sha256,
            **({} if ours else {"left_out": self.params.site}),
        }

    def adopt(self, step: int) -> Round:
        """Load the common weights that the run adopted after this step; return their round. All ranks must call this
        method.

        Raises:
            CheckpointError, IntegrityError, MissingError: no weights were adopted after this step, or cannot be read.
        """
        made: Round = self._on_all(lambda: self._recorded(step), lead=True)
        file = self._on_all(lambda: self.exchange.store.open_path(made.common))
        universal.replace_masters(self.engine, file, self.beat)
        self._round, self._common, self._adopted = made.round, made.common.sha256, step
        return made

    def _send(self, step: int, number: int) -> None:
        """Write every rank's shard of the FP32 master weights; the leading rank signs the contribution."""
        files: list[Blob] = [self._on_all(self._write)] * dist.get_world_size()
        dist.all_gather_object(files, files[self.rank.index])
        made = Contribution(
            site=self.params.site,
            round=number,
            base=self._common,
            step=step,
            goes_back_to=self._oldest_needed(number) if self.rank.leads else 0,
            ends=step == self.config.total_steps,
            files=tuple(files),
            at=now(),
        )
        self._on_all(lambda: self.exchange.send(made), lead=True)

    def _oldest_needed(self, number: int) -> int:
        """Return the first round that the run adopts again if it returns to its oldest checkpoint."""
        oldest = min(checkpoint.committed(self.config.directory), default=0)
        for path in sorted(self.config.directory.federated.glob("step-*.json")):
            if int(path.stem.removeprefix("step-")) >= oldest:
                return self.exchange.opened_round(path.read_bytes(), str(path)).round
        return number

    def _write(self) -> Blob:
        store = self.exchange.store
        folder = store.root / "staging" / f"{self.params.site}-{self.rank.index}"
        shutil.rmtree(folder, ignore_errors=True)  # left by a killed rank
        folder.mkdir(parents=True)
        sharded_state.write(universal.masters_of(self.engine), folder, self.rank.index)
        self.beat()
        made = store.put_file(folder / sharded_state.file_name(self.rank.index))
        shutil.rmtree(folder)
        return made

    def _has_sent(self, number: int) -> bool:
        return self.exchange.has_sent(number, self.params.site)

    def _keep(self, step: int) -> None:
        """Save the newest round's record for this step before the run adopts the round's weights."""
        _, signed = self.exchange.round(self.exchange.newest())
        write_bytes(self._path(step), signed.data)

    def _recorded(self, step: int) -> Round:
        path = self._path(step)
        if not path.exists():
            raise MissingError(
                f"the record of the weights that the site adopted after step {step} is missing", expected=path
            )
        return self.exchange.opened_round(path.read_bytes(), str(path))

    def _path(self, step: int) -> Path:
        return self.config.directory.federated / f"step-{step:08d}.json"

    def _on_all(self, work: Callable[[], Any], *, lead: bool = False) -> Any:
        """Call `work` on every rank, or only on the leading rank if `lead` is set.

        An error on one rank is raised on all ranks.
        """
        value, failure = None, None
        if self.rank.leads or not lead:
            try:
                value = work()
            except PlinthError as error:
                failure = RankFailure.of(error)
        gathered: list[tuple[Any, RankFailure | None]] = [(None, None)] * dist.get_world_size()
        dist.all_gather_object(gathered, (value if lead else None, failure))
        for _, found in gathered:
            if found is not None:
                raise found.error()
        return gathered[0][0] if lead else value
