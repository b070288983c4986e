"""Data loader and callback for OLMo-core's `Trainer`:

    with plinth.sdk.run(packages=olmo_core.PACKAGES) as run:
        loader = olmo_core.OlmoCoreDataLoader(run, run.scratch)
        config = TrainerConfig(save_folder=str(run.scratch), callbacks=olmo_core.callbacks(run, write_model),
                               **olmo_core.arguments(run))
        config.build(train_module, loader).fit()

With several ranks OLMo-core needs `OLMO_SHARED_FS: 1` in `training.launch.environment`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from olmo_core.data import DataLoaderBase
from olmo_core.train import Duration
from olmo_core.train.callbacks import Callback, CheckpointerCallback
from olmo_core.train.common import TRAIN_CE_LOSS_METRIC

from plinth.sdk.callbacks.base import accumulated
from plinth.sdk.data import StepBatches
from plinth.sdk.rank_run import Run

PACKAGES = ("ai2-olmo-core",)

#: Writes the model in Hugging Face's layout into a committed folder; called on all ranks.
WriteModel = Callable[[Path], object]


def arguments(run: Run) -> dict[str, Any]:
    """Return the fields of `TrainerConfig` that follow the recipe: length, and the checkpoint to load."""
    resumed = None if run.checkpoint is None else str(run.checkpoint)
    return {"max_duration": Duration.steps(run.config.total_steps), "load_path": resumed}


def callbacks(run: Run, write_model: WriteModel) -> dict[str, Callback]:
    """Return the callback of the run, which saves in place of OLMo-core's own."""
    return {"checkpointer": CheckpointerCallback(enabled=False), "plinth": OlmoCoreCallback(run, write_model)}


class OlmoCoreDataLoader(DataLoaderBase):  # type: ignore[misc]
    """Batches of this rank, one for each step.

    If the recipe keeps attention within documents (`model.document_mask`), the attention backend must support it.

    Args:
        work_dir: folder of this machine, which OLMo-core requires.

    Raises:
        RecipeError: the batch changes during the run, or does not divide into ranks.
    """

    def __init__(self, run: Run, work_dir: Path, *, rank: int = -1, world: int = 0) -> None:
        batch = accumulated(run, "OLMo-core", 1)[1] * run.world
        super().__init__(
            work_dir=work_dir,
            global_batch_size=batch * run.config.sequence_tokens,
            dp_world_size=world or run.world,
            dp_rank=rank if rank >= 0 else run.rank,
        )
        self._config, self._sequences, self._documents = run.config, batch, run.config.model.document_mask

    @property
    def total_batches(self) -> int:
        """Number of steps of the run."""
        return self._config.total_steps

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps taken."""
        return {"batches_processed": self.batches_processed}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue after the steps of a state."""
        self.batches_processed = int(state_dict["batches_processed"])

    def reshuffle(self, epoch: int | None = None, **kwargs: Any) -> None:
        """Begin the only epoch. The recipe's mixture states how often a text is read."""
        self._epoch = epoch or 1

    def get_mock_batch(self) -> dict[str, Any]:
        """Return a batch without text for OLMo-core's dry run."""
        share = self._sequences // self.dp_world_size
        return {"input_ids": torch.zeros(share, self._config.sequence_tokens, dtype=torch.int64)}

    def global_num_tokens_in_batch(self, batch: dict[str, Any]) -> int:
        """Return the number of tokens of a step."""
        return int(self.global_batch_size)

    def _iter_batches(self) -> Iterator[dict[str, Any]]:
        share = self._sequences // self.dp_world_size
        place = {"rank": self.dp_rank, "world": self.dp_world_size}
        for batch in StepBatches(self._config, **place, micro_batch=share, done=self.batches_processed):
            made = {name: batch[name] for name in ("input_ids", "labels")}
            yield {**made, **document_lengths(batch["position_ids"])} if self._documents else made


def document_lengths(positions: torch.Tensor) -> dict[str, Any]:
    """Return the lengths of the documents in each row as OLMo-core expects them, padded with zeros."""
    rows = [torch.diff((row == 0).nonzero().flatten(), append=torch.tensor([len(row)])) for row in positions]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"doc_lens": padded, "max_doc_lens": [int(row.max()) for row in rows]}


@dataclass
class OlmoCoreCallback(Callback):  # type: ignore[misc]
    """Reports each step, stops when the run requires it, and saves and commits the trainer's state."""

    run: Run
    write_model: WriteModel
    _loss: float = field(default=0.0, init=False)

    def pre_train(self) -> None:
        """Replace OLMo-core's signal handlers, which end the training without a save."""
        self.run.handle_signals()

    def pre_step(self, batch: dict[str, Any]) -> None:
        self.run.begin()

    def post_train_batch(self) -> None:
        """Read the loss before it is passed on."""
        found = self.trainer.get_metric(TRAIN_CE_LOSS_METRIC).detach().double()
        if self.run.world > 1:
            dist.all_reduce(found)
        self._loss = float(found) / self.run.world

    def post_step(self) -> None:
        step = self.trainer.global_step
        goes_on = self.run.step(step, loss=self._loss, tokens=self.trainer.global_train_tokens_seen)
        if self.run.saves_at(step):
            folder = Path(str(self.trainer.save_checkpoint()))
            self.write_model(folder)
            self.run.commit(folder, step)
        if not goes_on and step < self.run.config.total_steps:
            self.trainer.cancel_run("the run asked for it", no_sync=True)
