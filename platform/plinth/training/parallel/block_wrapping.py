"""Compilation and activation recomputation of the decoder's blocks."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from plinth.model.blocks import Block
from plinth.training.parallel.parameters import Parallel


def wrap_blocks(blocks: Iterable[Block], parallel: Parallel) -> None:
    """Replace the blocks' `forward`; names of modules and parameters stay.

    Recomputation is PyTorch's non-reentrant checkpoint (Chen et al., arXiv:1604.06174): the same kernels on the same
    inputs, so gradients are the same bit for bit. Nothing in a block is random, so generators are left alone.
    """
    every = parallel.activation_checkpointing
    for block in blocks:
        run: Any = block.forward
        if parallel.compile:
            run = torch.compile(run)
        if every and (block.index + 1) % every == 0:
            run = partial(checkpoint, run, use_reentrant=False, preserve_rng_state=False)
        setattr(block, "forward", run)  # noqa: B010 - mypy forbids it as an assignment
