"""Losses of a past step's batch, token by token, under the parameters of a checkpoint; offline, in one process.

    R  rows of the global batch (sequences)    S  tokens of a sequence

The batch is the run's global batch, from its manifests, in the order of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from plinth.errors import MissingError
from plinth.launch.parameters import Launch
from plinth.model.decoder import Decoder
from plinth.model.folder import load_weights
from plinth.model.loss import IGNORED
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.data import StepBatch, batches_of
from plinth.training.engine.batch_expansion import expand_batch
from plinth.training.parameters.parallel import Parallel


@dataclass(frozen=True)
class SequenceLosses:
    """One sequence of a step.

    Attributes:
        tokens: [S + 1].
        losses: [S] of the targets, which are tokens 1 to S; NaN where one is not scored.
        gradient: norm of this sequence's own gradient, when asked for.
    """

    row: int
    tokens: npt.NDArray[np.int32]
    losses: npt.NDArray[np.float32]
    gradient: float | None = None


def checkpoint_before(config: RunConfig, step: int, wanted: int | None = None) -> int:
    """The newest committed checkpoint that has not learnt from `step`, or the one wanted; verified.

    Raises:
        MissingError: there is none.
        CheckpointError: it is not what was committed.
    """
    steps = checkpoint.committed(config.directory)
    fitting = [one for one in steps if (one == wanted if wanted is not None else one < step)]
    if not fitting:
        raise MissingError(
            f"run {config.run_id} has no checkpoint {wanted if wanted is not None else f'before step {step}'}",
            found=f"checkpoints of steps {', '.join(map(str, steps)) or 'none'}",
            remedy="name one with --checkpoint; a later one has seen the batch, so its losses are lower"
            + (f". Steps after {steps[0]} need none" if steps and wanted is None else ""),
        )
    checkpoint.verify(config.directory, fitting[-1])
    return fitting[-1]


def load(config: RunConfig, step: int) -> Decoder:
    """The model of a checkpoint that has been verified, FP32, on the GPU if there is one.

    Raises:
        CheckpointError: its tensors are not those of the run's model.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device("meta"):
        model = Decoder(config.model_at(step), config.vocab_size)
    digests = checkpoint.digests(config.directory, step, "model")
    load_weights(model, checkpoint.path(config.directory, step) / "model", device, torch.float32, digests)
    return model


def batch_of(config: RunConfig, step: int) -> StepBatch:
    """The whole batch of a step, one sequence to a micro batch."""
    alone = {"launch": Launch(ranks=1), "parallel": Parallel(), "micro_batch_sequences": 1}
    return next(iter(batches_of(config.model_copy(update=alone), 0)(step)))


def rows(model: Decoder, batch: StepBatch, *, gradients: bool = False) -> Iterator[SequenceLosses]:
    """Every sequence of a batch with the loss of each of its tokens.

    A sequence that is cut into shorter rows is scored in those rows, as it was trained.
    """
    device = next(model.parameters()).device
    for row, own in enumerate(batch.micro):
        inputs, segments, targets = expand_batch(own, batch.length, device, segments=model.config.document_mask)
        with torch.set_grad_enabled(gradients):
            losses = _losses(model, inputs, segments, targets)
        norm = _gradient(model, losses, targets) if gradients else None
        seen = losses.detach().masked_fill(targets == IGNORED, float("nan")).flatten().cpu().numpy()
        yield SequenceLosses(row, own.tokens[0].astype(np.int32), seen, norm)


def _losses(model: Decoder, inputs: Tensor, segments: Tensor | None, targets: Tensor) -> Tensor:
    """[rows, length] in nats."""
    logits = model(inputs, segments)
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none").view_as(targets)


def _gradient(model: Decoder, losses: Tensor, targets: Tensor) -> float:
    """Norm of the gradient of a sequence's mean loss."""
    model.zero_grad(set_to_none=True)
    (losses.sum() / (targets != IGNORED).sum().clamp(min=1)).backward()  # type: ignore[no-untyped-call]
    norms = [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad(set_to_none=True)
    return float(torch.linalg.vector_norm(torch.stack(norms)))
