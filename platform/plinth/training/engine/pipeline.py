"""Pipeline parallelism: the engine of a stage, and exchange of activations, gradients and a tied embedding between
stages.

Concurrent sends and receives are issued as one batch of operations. Otherwise NCCL would deadlock if both stages sent
first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from plinth.model.attention import Layout
from plinth.model.decoder import Decoder
from plinth.model.division import PipelineStage
from plinth.tokens.reading.compact_batch import CompactBatch
from plinth.training.config import RunConfig
from plinth.training.data import StepBatch
from plinth.training.engine.engine import NO_HOOKS, PassHooks, Rank, TrainingEngine, accumulate
from plinth.training.parallel.divided_decoder import gathered
from plinth.training.parallel.topology import ModelParallelUnit, Topology


class StageExchange:
    """Exchange of activations and gradients with the previous and the next pipeline stage."""

    def __init__(self, stage: PipelineStage, ranks: Sequence[int], like: Tensor, device: torch.device) -> None:
        """Set up the exchange.

        `ranks` are the global ranks of the pipeline, first stage first. `like` is a meta tensor with the shape of the
        activations.
        """
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
        """Send and receive tensors. Return the activations of the previous stage and the gradient of the next stage."""
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
    """A loss whose gradient with respect to a stage's output is the gradient received from the next stage.

    Any factor on this loss is ignored, because the last stage's loss already has the factors for accumulation and loss
    scale.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *factor: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0], None


class TiedEmbedding:
    """A tied embedding matrix. The first stage owns the matrix; the last stage uses a copy."""

    def __init__(self, model: Decoder, ranks: Sequence[int], device: torch.device, dtype: torch.dtype) -> None:
        self._model, self._stage, self._ranks = model, model.division.stage, ranks
        self._gradient: Tensor | None = None
        if self._stage.last:
            first, end = model.held_ids
            borrowed = torch.zeros(end - first, model.config.dim, device=device, dtype=dtype).requires_grad_()
            borrowed.register_post_accumulate_grad_hook(self._add)  # type: ignore[no-untyped-call]
            model.borrowed_embedding = borrowed

    def _add(self, borrowed: Tensor) -> None:
        """Add a micro batch's gradient of the last stage's copy in FP32, as DeepSpeed does for the parameters that it
        manages."""
        assert borrowed.grad is not None
        if self._gradient is None:
            self._gradient = torch.zeros_like(borrowed, dtype=torch.float32)
        self._gradient += borrowed.grad
        borrowed.grad = None

    def send_weights(self) -> None:
        """Send the first stage's embedding to the last stage. Call this after a step and after loading a checkpoint."""
        operations: list[dist.P2POp] = []
        if self._stage.first:
            _send(operations, self._model.embed_tokens.detach(), self._ranks[-1])
        elif self._model.borrowed_embedding is not None:
            operations.append(dist.P2POp(dist.irecv, self._model.borrowed_embedding.detach(), self._ranks[0]))
        _wait(operations)

    def send_gradient(self, outer: Any) -> None:
        """Send the last stage's gradient to the first stage, and add it to the gradient in DeepSpeed's optimizer
        `outer`."""
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
    """Return the tensor in which DeepSpeed has accumulated the gradient of a parameter."""
    if hasattr(outer, "get_gradient_for_reduction"):
        return cast(Tensor, outer.get_gradient_for_reduction(parameter))
    return cast(Tensor, parameter.grad)


# Layers of the decoder divided over stages, with pipelined micro batches.
#
#     stage 0   embedding, layers 0 … k     ──activations──▶   stage 1   layers k+1 …, norm, head, loss
#                                           ◀──gradients────
#
# One-forward-one-backward (PipeDream-flush, arXiv:2006.09503; Megatron-LM, arXiv:2104.04473): a stage holds the
# activations of at most as many micro batches as there are stages from it to the last. The micro batches are those
# of gradient accumulation, so the gradient is that of the undivided model; the share of time that stages wait is
# (stages - 1) / (micro batches + stages - 1).
#
# Every stage reads the batch itself: ids, documents and targets are not sent, and masks and positions are computed
# where they are used. Activations take their shape from the batch, so the number of micro batches and the length of
# rows may vary between steps; each sequence rank has a pipeline of its own, for its slice of the rows. DeepSpeed keeps
# the optimizer (on the device or offloaded), ZeRO-0 or 1, precision, clipping and the sum over data and sequence ranks;
# each stage is an engine of its own whose model-parallel group is the pipeline. DeepSpeed's PipelineEngine is
# unsuitable. It trains a step in one call, so the guard could not skip an update after the gradient. It names
# parameters by position, so a checkpoint would fit only one number of stages. It also updates each copy of a tied
# matrix separately.
#
# With tied embeddings the first stage owns the matrix and its optimizer state. The last stage receives the weights at
# the start of a step and sends its gradient after the backward passes: no second state, and no copies that drift apart.


def open_engine(config: RunConfig, rank: Rank, hooks: PassHooks = NO_HOOKS) -> TrainingEngine:
    """Open the training engine that the run's `parallel:` block needs, with the hooks of the run. All ranks must call
    this.

    Raises:
        TrainingError: this machine does not support the settings in the block.
    """
    of_stage = PipelineEngine if config.parallel.pipeline > 1 else TrainingEngine
    return of_stage(config, rank, hooks)


class PipelineEngine(TrainingEngine):
    """`TrainingEngine` of one pipeline stage. Its `parameters` and losses cover the whole model on every rank."""

    def __init__(self, config: RunConfig, rank: Rank, hooks: PassHooks) -> None:
        super().__init__(config, rank, hooks)
        self.deepspeed.enable_backward_allreduce = False  # reduced once, after the exchange of tied gradients
        for parameter in self.module.parameters():  # counted in norms on every rank, others on the first
            parameter.model_parallel = hasattr(parameter, "shard") or self.topology.place.tensor == 0  # type: ignore[attr-defined]
        self._dtype = next(self.module.parameters()).dtype
        model, tied = cast(Decoder, self.module), config.model.tied_embeddings
        self._stage, self._ranks = model.division.stage, self.topology.members(("pipeline",))
        self._tied = TiedEmbedding(model, self._ranks, rank.device, self._dtype) if tied else None

    def _unit(self) -> Any:
        return PipelineUnit(self.topology)

    def _attempt(self, batch: StepBatch) -> Tensor:
        engine, micro_batches = self.deepspeed, len(batch)
        accumulate(engine, micro_batches)
        self._again()
        self.stats.gradient_scale = self._loss_scale / micro_batches
        engine.set_gradient_accumulation_boundary(False)
        if self._tied is not None:
            self._tied.send_weights()
        total = self._schedule(batch)
        if self.balance is None:
            dist.broadcast(total, self._ranks[-1], group=self.topology.pipeline)
        else:  # every stage has the balancing losses of its own layers
            dist.all_reduce(total, group=self.topology.pipeline)
        engine.set_gradient_accumulation_boundary(True)
        if self._tied is not None:
            self._tied.send_gradient(engine.optimizer)
        engine.allreduce_gradients()
        self._complete(total)
        self.clock.enter("optimizer")
        engine.step()
        return total

    def _schedule(self, batch: StepBatch) -> Tensor:
        """Run all forward and backward passes of a step. Return the mean loss on the last stage, and the mean balancing
        losses on other stages."""
        total = torch.zeros((), dtype=torch.float64, device=self.rank.device)
        waiting: deque[tuple[Tensor | None, Tensor, Tensor | None]] = deque()
        count, weights = len(batch), batch.weights(self.config.data_ranks)
        numbers = iter(range(count))
        warm_up = min(self._stage.count - 1 - self._stage.index, count)
        exchange = StageExchange(self._stage, self._ranks, self._activations(batch.shape), self.rank.device)

        def forward(x: Tensor | None) -> Tensor:
            self.clock.enter("forward")
            micro = next(numbers)
            rows = batch.micro[micro]
            whole = rows.unbroken(batch.length)  # checked on the host, without a wait
            inputs = self._on_device(rows, batch.length)
            more: dict[str, Any] = {}
            for hook_inputs in self.hooks.inputs:
                more |= hook_inputs(batch, micro, inputs, whole)
            y: Tensor = self.deepspeed(*inputs, x=x, whole=whole, **more)
            if self._stage.last:
                for hook_loss in self.hooks.loss:
                    y = hook_loss(y, inputs)
            loss = y if self._stage.last else self._balancing_loss()
            if loss is not None:
                loss = loss if weights is None else loss * weights[micro]
                total.add_(loss.detach().double() / count)
            waiting.append((x, y, loss))
            return y.detach()

        def backward(gradient: Tensor | None) -> Tensor | None:
            self.clock.enter("backward")
            x, y, loss = waiting.popleft()
            if gradient is None:
                assert loss is not None
                self.deepspeed.backward(loss)
            else:
                received = ReceivedGradient.apply(y, gradient)  # type: ignore[no-untyped-call]
                self.deepspeed.backward(received if loss is None else received + loss / count, scale_wrt_gas=False)
            return None if x is None else x.grad

        for _ in range(warm_up):
            exchange(forward_to=forward(exchange(forward_from=True)[0]))
        x = exchange(forward_from=True)[0] if count > warm_up else None
        for left in reversed(range(count - warm_up)):
            gradient = exchange(forward_to=forward(x), backward_from=True)[1]
            x = exchange(backward_to=backward(gradient), forward_from=left > 0)[0]
        for _ in range(warm_up):
            exchange(backward_to=backward(exchange(backward_from=True)[1]))
        return total

    def _balancing_loss(self) -> Tensor | None:
        """Return the balancing losses of this stage's layers in the last forward pass; None without sparse layers."""
        routing = cast(Decoder, self.module).routing
        return None if routing is None else routing.loss()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        with super().evaluating():
            if self._tied is not None:
                self._tied.send_weights()
            yield

    def loss_of(self, tokens: Any, scored: Any) -> Tensor:
        """Return the loss like `TrainingEngine.loss_of` on the last stage, and zero on other stages."""
        rows = CompactBatch.of(tokens, None, scored)
        y = self._passed_on(tokens.shape, *self._on_device(rows, tokens.shape[1] - 1), whole=True)
        return y if self._stage.last else torch.zeros((), device=self.rank.device)

    def arranged(self, tokens: Tensor, *, layout: Layout) -> Tensor:
        y = self._passed_on((tokens.shape[0], tokens.shape[1] + 1), tokens, layout=layout)
        assert layout.targets is not None
        return y if self._stage.last else torch.zeros(len(layout.targets), 2, device=self.rank.device)

    def _passed_on(self, shape_of_tokens: Sequence[int], *inputs: Any, **asked: Any) -> Tensor:
        """Run one forward pass over all stages. Each stage gets the previous stage's activations and returns its own
        output."""
        exchange = StageExchange(self._stage, self._ranks, self._activations(shape_of_tokens), self.rank.device)
        x = exchange(forward_from=True)[0]
        y: Tensor = self.deepspeed(*inputs, x=x, **asked)
        exchange(forward_to=y)
        return y

    def _activations(self, shape_of_tokens: Sequence[int]) -> Tensor:
        """Return a meta tensor with the shape and dtype of the activations between stages.

        For tokens […, B, S + 1] and n ranks that share a sequence, the shape is [B, S/n, D], in the model's precision.
        """
        *_, micro, length = shape_of_tokens
        shape = micro, (length - 1) // self.config.parallel.sequence, self.config.model.dim
        return torch.empty(shape, dtype=self._dtype, device="meta")

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield whole parameters in the order of the undivided model, one at a time, on the CPU. All ranks must iterate
        together."""
        with torch.device("meta"):
            undivided = Decoder(self.config.model, self.config.vocab_size)
        ours = dict(self.module.named_parameters())
        for name, meta in undivided.named_parameters():
            if name in ours:
                value = gathered(ours[name], self.topology).contiguous()
            else:
                value = torch.empty(meta.shape, dtype=self._dtype, device=self.rank.device)
            owner = self._stage.owner(name, self.config.model.layers)
            dist.broadcast(value, self._ranks[owner], group=self.topology.pipeline)
            yield name, value.cpu().clone()


class PipelineUnit(ModelParallelUnit):
    """Model-parallel group for DeepSpeed: the ranks of one replica, over pipeline stages and tensor ranks."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology)
        self._members = topology.members(("pipeline", "tensor"))
        self._model = topology.pipeline if topology.tensor is None else topology.group_of(("pipeline", "tensor"))

    def get_model_parallel_group(self) -> Any:
        return self._model

    def get_model_parallel_world_size(self) -> int:
        return len(self._members)

    def get_model_parallel_rank(self) -> int:
        return self._members.index(self._topology.rank)

    def get_model_parallel_src_rank(self) -> int:
        return self._members[0]

    def get_pipeline_model_parallel_world_size(self) -> int:
        return self._topology.shape.pipeline
