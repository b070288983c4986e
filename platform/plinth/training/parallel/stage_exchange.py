"""Exchange between stages of a pipeline: activations, their gradients, and a tied embedding matrix.

The sends and receives of one moment are one batch of operations: NCCL would wait for ever if both stages sent first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from plinth.model.decoder import Decoder
from plinth.model.division import PipelineStage


class StageExchange:
    """Sends to, and receives from, the stages before and after this one."""

    def __init__(self, stage: PipelineStage, ranks: Sequence[int], like: Tensor, device: torch.device) -> None:
        """`ranks`: global ranks of the pipeline, first stage first. `like`: activations, without memory."""
        self._before = None if stage.first else ranks[stage.index - 1]
        self._after = None if stage.last else ranks[stage.index + 1]
        self._like, self._device = like, device

    def __call__(
        self,
        *,
        forward_from: bool = False,
        forward_to: Tensor | None = None,
        backward_from: bool = False,
        backward_to: Tensor | None = None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Send and receive; returns the activations from the stage before and the gradient from the one after."""
        operations: list[dist.P2POp] = []
        x = self._receive(operations, self._before) if forward_from else None
        gradient = self._receive(operations, self._after) if backward_from else None
        _send(operations, forward_to, self._after)
        _send(operations, backward_to, self._before)
        _wait(operations)
        return (None if x is None else x.requires_grad_()), gradient

    def _receive(self, operations: list[dist.P2POp], peer: int | None) -> Tensor | None:
        if peer is None:
            return None
        buffer = torch.empty_like(self._like, device=self._device)
        operations.append(dist.P2POp(dist.irecv, buffer, peer))
        return buffer


class ReceivedGradient(torch.autograd.Function):
    """A loss whose gradient with respect to a stage's output is the one received from the next stage.

    Whatever factor is put on this loss is ignored: the last stage's loss carries accumulation and loss scale.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *factor: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0], None


class TiedEmbedding:
    """The embedding matrix where it is used twice: owned by the first stage, borrowed by the last."""

    def __init__(self, model: Decoder, ranks: Sequence[int], device: torch.device, dtype: torch.dtype) -> None:
        self._model, self._stage, self._ranks = model, model.division.stage, ranks
        self._gradient: Tensor | None = None
        if self._stage.last:
            first, end = model.held_ids
            borrowed = torch.zeros(end - first, model.config.dim, device=device, dtype=dtype).requires_grad_()
            borrowed.register_post_accumulate_grad_hook(self._add)  # type: ignore[no-untyped-call]
            model.borrowed_embedding = borrowed

    def _add(self, borrowed: Tensor) -> None:
        """Micro batches are added in FP32, as DeepSpeed adds those of its own parameters."""
        assert borrowed.grad is not None
        if self._gradient is None:
            self._gradient = torch.zeros_like(borrowed, dtype=torch.float32)
        self._gradient += borrowed.grad
        borrowed.grad = None

    def send_weights(self) -> None:
        """The last stage receives the weights that the first has now, from a step or from a checkpoint."""
        operations: list[dist.P2POp] = []
        if self._stage.first:
            _send(operations, self._model.embed_tokens.detach(), self._ranks[-1])
        elif self._model.borrowed_embedding is not None:
            operations.append(dist.P2POp(dist.irecv, self._model.borrowed_embedding.detach(), self._ranks[0]))
        _wait(operations)

    def send_gradient(self, outer: Any) -> None:
        """The last stage's gradient is added to the first's, where DeepSpeed's optimizer `outer` has it."""
        operations: list[dist.P2POp] = []
        if self._stage.last:
            _send(operations, self._gradient, self._ranks[0])
            self._gradient = None
            _wait(operations)
        elif self._stage.first:
            parameter = self._model.embed_tokens
            received = torch.empty_like(parameter, dtype=torch.float32)
            _wait([dist.P2POp(dist.irecv, received, self._ranks[-1])])
            _accumulated(outer, parameter).view(-1).add_(received.view(-1))


def _send(operations: list[dist.P2POp], tensor: Tensor | None, peer: int | None) -> None:
    if peer is not None and tensor is not None:
        operations.append(dist.P2POp(dist.isend, tensor.contiguous(), peer))


def _wait(operations: list[dist.P2POp]) -> None:
    for work in dist.batch_isend_irecv(operations) if operations else []:
        work.wait()


def _accumulated(outer: Any, parameter: Any) -> Tensor:
    """The tensor in which DeepSpeed has added up the gradient of a parameter."""
    if hasattr(outer, "get_gradient_for_reduction"):
        return cast(Tensor, outer.get_gradient_for_reduction(parameter))
    return cast(Tensor, parameter.grad)
