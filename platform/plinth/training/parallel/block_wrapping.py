"""What is done to every block of the decoder: compiled, computed again in the backward pass."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from plinth.training.parallel.parameters import Parallel


def wrap(layers: nn.ModuleList, parallel: Parallel) -> None:
    """Replace the blocks' `forward`; names of modules and parameters stay.

    Recomputation is PyTorch's non-reentrant checkpoint (Chen et al., arXiv:1604.06174): the same kernels on the same
    inputs, so gradients are the same bit for bit. Nothing in a block is random, so generators are left alone.
    """
    every = parallel.activation_checkpointing
    for number, layer in enumerate(layers, 1):
        run: Any = layer.forward
        if parallel.compile:
            run = torch.compile(run)
        if every and number % every == 0:
            run = partial(checkpoint, run, use_reentrant=False, preserve_rng_state=False)
        setattr(layer, "forward", run)  # noqa: B010 - mypy forbids it as an assignment
