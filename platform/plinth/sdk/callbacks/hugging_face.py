"""Callback for `transformers.Trainer`:

with plinth.sdk.run(packages=hugging_face.PACKAGES) as run:
    trainer = Trainer(model, TrainingArguments(**hugging_face.arguments(run)), data_collator=hugging_face.collate,
                      train_dataset=OrderedSequences(run.config), callbacks=[hugging_face.TransformersCallback(run)])
    trainer.train(resume_from_checkpoint=hugging_face.resumed(run))
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from plinth.errors import TrainingError
from plinth.sdk.callbacks.base import accumulated
from plinth.sdk.rank_run import Run

PACKAGES = ("transformers", "accelerate")

#: Fields of `TrainingArguments` that decide the order, and their only values. The default order is random.
_ORDER = {"train_sampling_strategy": "sequential", "ignore_data_skip": False}


def arguments(run: Run, micro_batch: int = 0) -> dict[str, Any]:
    """Return the `TrainingArguments` that follow the run's order and save at the recipe's interval.

    Args and errors are those of `base.accumulated`.
    """
    size, count = accumulated(run, "transformers.Trainer", micro_batch)
    return {
        "output_dir": str(run.scratch),
        "max_steps": run.config.total_steps,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": count,
        "train_sampling_strategy": "sequential",
        "remove_unused_columns": False,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",  # the callback asks for each save
        "report_to": "none",
        "disable_tqdm": True,
    }


def collate(items: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Stack sequences of `OrderedSequences` for a causal model of transformers. Their labels are shifted already."""
    made = {name: torch.stack([one[name] for one in items]) for name in items[0]}
    return {**made, "shift_labels": made["labels"]}


def resumed(run: Run) -> str | None:
    """Return the value of `resume_from_checkpoint`."""
    return None if run.checkpoint is None else str(run.checkpoint)


class TransformersCallback(TrainerCallback):
    """Reports each step, saves and stops when the run requires it, and commits each saved folder."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check the settings that decide which sequences each step reads: their number alone looks right."""
        found = {name: getattr(args, name) for name in _ORDER}
        split = getattr(args.accelerator_config, "split_batches", False)  # then a batch of all ranks is one rank's
        found["split_batches"] = bool(split)
        expected = {**_ORDER, "split_batches": False}
        if wrong := [name for name in expected if found[name] != expected[name]]:
            raise TrainingError(
                "transformers.Trainer would not read the sequences in the run's order",
                found=", ".join(f"{name} {found[name]}" for name in wrong),
                expected=", ".join(f"{name} {expected[name]}" for name in wrong),
                remedy="build TrainingArguments from `hugging_face.arguments(run)`",
            )

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.run.begin()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> TrainerControl:
        """Report the step whose loss is logged. The summary at the end of training has none."""
        if logs and "loss" in logs:
            sequences = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
            control.should_training_stop = not self.run.step(
                state.global_step,
                loss=float(logs["loss"]),
                tokens=state.global_step * sequences * self.run.config.sequence_tokens,
                grad_norm=logs.get("grad_norm"),
                lr=logs.get("learning_rate"),
            )
            control.should_save = self.run.saves_at(state.global_step)
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Commit the folder that was just written."""
        self.run.commit(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}", state.global_step)
