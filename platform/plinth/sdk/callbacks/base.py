"""Common part of the callbacks: the batch of trainers that cannot change it during a run."""

from __future__ import annotations

from plinth.errors import RecipeError
from plinth.sdk.rank_run import Run


def accumulated(run: Run, trainer: str, micro_batch: int = 0) -> tuple[int, int]:
    """Return the micro batch of a rank, and the number of micro batches in each of its steps.

    Args:
        trainer: name of the trainer for errors.
        micro_batch: number of sequences per rank and forward pass; 0 takes the recipe's.

    Raises:
        RecipeError: the batch changes during the run, or does not divide into ranks and micro batches.
    """
    size = micro_batch or run.config.micro_batch_sequences
    (batch, *changed) = run.config.steps.batches
    if changed or batch % (size * run.world):
        raise RecipeError(
            f"{trainer} needs the same number of micro batches in every step",
            found=f"{', '.join(map(str, (batch, *changed)))} sequences, {run.world} ranks, micro batches of {size}",
            expected="one global batch that is a multiple of ranks x micro batch",
        )
    return size, batch // (size * run.world)
