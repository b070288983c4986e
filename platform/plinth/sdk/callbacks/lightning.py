"""Callback for Lightning's `Trainer`. Give the trainer `StepBatches` in a `DataLoader(…, batch_size=None)`:

with plinth.sdk.run(packages=lightning.PACKAGES) as run:
    trainer = Trainer(**lightning.arguments(run), callbacks=[lightning.LightningCallback(run)])
    trainer.fit(module, loader, ckpt_path=lightning.resumed(run))
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from plinth.errors import TrainingError
from plinth.sdk.callbacks.base import accumulated
from plinth.sdk.rank_run import Run

PACKAGES = ("lightning",)

#: File of Lightning's state in a committed folder.
STATE = "lightning.ckpt"


def arguments(run: Run, micro_batch: int = 0) -> dict[str, Any]:
    """Return the arguments of `Trainer` that follow the run's order. `StepBatches` must have the same micro batch.

    Args and errors are those of `base.accumulated`.
    """
    return {
        "max_steps": run.config.total_steps,
        "accumulate_grad_batches": accumulated(run, "Lightning's Trainer", micro_batch)[1],
        "use_distributed_sampler": False,  # the data is already this rank's
        "enable_checkpointing": False,  # the callback saves
        "logger": False,
        "default_root_dir": str(run.scratch),
    }


def resumed(run: Run) -> str | None:
    """Return the value of `ckpt_path`. Build `StepBatches` with `done=run.resumed`."""
    return None if run.checkpoint is None else str(run.checkpoint / STATE)


class LightningCallback(pl.Callback):  # type: ignore[misc]
    """Reports each step, stops when the run requires it, and saves and commits Lightning's state.

    Args:
        loss: name of the metric that `training_step` logs.
        write_model: `(module, folder)` writes the model in Hugging Face's layout into the committed folder.
    """

    def __init__(self, run: Run, write_model: Callable[[pl.LightningModule, Path], object], loss: str = "loss") -> None:
        self.run, self.write_model, self.loss = run, write_model, loss
        self._sum, self._count = torch.zeros((), dtype=torch.float64), 0

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Replace Lightning's signal handlers, which end the training without a save."""
        self.run.handle_signals()

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, index: int) -> None:
        """Check that the micro batch belongs to the next step. With another micro batch or `done` in `StepBatches`, all
        later steps would have other texts."""
        given, expected = batch.get("step") if isinstance(batch, dict) else None, self.run.done + 1
        if given != expected:
            raise TrainingError(
                f"step {expected} of Lightning's trainer got another micro batch",
                found="a batch without `step`" if given is None else f"a micro batch of step {int(given)}",
                expected="micro batches of `StepBatches`, with the micro batch of `arguments` and `done=run.resumed`",
            )
        if self._count == 0:
            self.run.begin()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        """Report a step after its last micro batch: the mean of the logged losses over micro batches and ranks."""
        self._sum += trainer.callback_metrics[self.loss].detach().double().cpu()
        self._count += 1
        if trainer.global_step == self.run.done:
            return
        mean = trainer.strategy.reduce(self._sum / self._count, reduce_op="mean")
        self._sum, self._count = torch.zeros((), dtype=torch.float64), 0
        step = trainer.global_step
        trainer.should_stop = not self.run.step(step, loss=float(mean))
        if self.run.saves_at(step):
            folder = self.run.scratch / f"step-{step}"
            trainer.save_checkpoint(folder / STATE)
            if self.run.leads:
                self.write_model(module, folder)
            self.run.commit(folder, step)
