"""Compilation and activation recomputation of the decoder's blocks."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from plinth.model.blocks import Block
from plinth.training.parameters.parallel import Parallel

#: Graphs of one method; a schedule of row lengths needs two for each.
SHAPES = 64


def wrap_blocks(blocks: Iterable[Block], parallel: Parallel) -> None:
    """Replace the blocks' methods; names of modules and parameters stay.

    `before` and `after` are compiled as whole graphs that all blocks share, one for each row length, in training and in
    validation: shapes are constants in them. A block that cannot be compiled is an error, and so is a run with more
    shapes than `SHAPES`; PyTorch would go on without compiling.

    Recomputation is PyTorch's non-reentrant checkpoint (Chen et al., arXiv:1604.06174): the same kernels on the same
    inputs, so gradients are the same bit for bit. Nothing in a block is random, so generators are left alone.
    """
    every = parallel.activation_checkpointing
    for block in blocks:
        if parallel.compile:
            torch._dynamo.config.recompile_limit = SHAPES
            for name in ("before", "after"):
                setattr(block, name, torch.compile(getattr(block, name), fullgraph=True, dynamic=False))
        if every and (block.index + 1) % every == 0:
            run = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
            setattr(block, "forward", run)  # noqa: B010 - mypy forbids it as an assignment
