"""One plain process for comparison with ranks: PyTorch's AdamW in FP32, without DeepSpeed and without micro batches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from plinth.model.decoder import Decoder, build
from plinth.training.config import RunConfig


def plain_run(
    config: RunConfig, steps: int, loss_of: Callable[[Decoder, int], Tensor], rate_of: Callable[[int], float]
) -> tuple[list[float], list[float], Decoder]:
    """Losses, gradient norms and the model after so many steps."""
    torch.set_num_threads(1)  # threads that wait for each other crawl on a busy machine
    model, options = build(config.model, config.vocab_size, config.seed), config.optimizer
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    gains = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": options.weight_decay}, {"params": gains, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(options.beta1, options.beta2), eps=options.eps)
    losses, norms = [], []
    for step in range(1, steps + 1):
        loss = loss_of(model, step)
        loss.backward()
        norms.append(float(clip_grad_norm_(model.parameters(), options.grad_clip)))
        for group in optimizer.param_groups:
            group["lr"] = rate_of(step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms, model
