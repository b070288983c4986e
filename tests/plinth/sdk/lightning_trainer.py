"""Lightning's trainer as released, on the CPU, with a model of transformers. FAULTS are those of `plain_trainer`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import lightning.pytorch as pl
import torch
from plain_trainer import before, fault, plant
from torch.utils.data import DataLoader

import plinth.sdk
from plinth.sdk.callbacks import lightning
from plinth.sdk.data import StepBatches


class Module(pl.LightningModule):
    def __init__(self, run: plinth.sdk.Run) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        super().__init__()
        self.model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**run.model))
        self.lr = run.config.optimizer.lr

    def training_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
        inputs = {name: batch[name] for name in ("input_ids", "labels", "position_ids")}
        # with a cache, transformers attends across documents
        loss = self.model(**inputs, shift_labels=batch["labels"], use_cache=False).loss
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def main() -> None:
    with plinth.sdk.run(packages=lightning.PACKAGES) as run:
        plant(run)
        callback = lightning.LightningCallback
        before(callback, "on_train_batch_start", lambda *_: True, lambda: fault(run, "step", run.done + 1))
        before(plinth.sdk.Run, "commit", lambda *_: True, lambda: fault(run, "save", run.done))
        pl.seed_everything(run.config.seed)
        config = run.config
        batches = StepBatches(
            config, rank=run.rank, world=run.world, micro_batch=config.micro_batch_sequences, done=run.resumed
        )
        own = callback(run, lambda module, folder: module.model.save_pretrained(folder))
        trainer = pl.Trainer(
            **lightning.arguments(run), callbacks=[own], accelerator="cpu", enable_progress_bar=False,
            devices=run.world, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Module(run), DataLoader(batches, batch_size=None), ckpt_path=lightning.resumed(run))


if __name__ == "__main__":
    main()
