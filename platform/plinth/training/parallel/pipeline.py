"""The layers of the decoder divided over stages; micro batches follow one another through them.

    stage 0   embedding, layers 0 … k     ──activations──▶   stage 1   layers k+1 …, norm, head, loss
                                          ◀──gradients────

One-forward-one-backward (PipeDream-flush, arXiv:2006.09503; Megatron-LM, arXiv:2104.04473): a stage holds the
activations of at most as many micro batches as there are stages from it to the last. The micro batches are those
of gradient accumulation, so the gradient is that of the undivided model; the share of time that stages wait is
(stages - 1) / (micro batches + stages - 1).

Every stage reads the batch itself: ids, documents and targets are not sent, and masks and positions are made
where they are used. DeepSpeed keeps optimizer, ZeRO-0 or 1, precision, clipping and the sum over data ranks, each
stage an engine of its own whose model-parallel group is the pipeline. Its own PipelineEngine renames parameters by
position, sends masks from stage to stage and wants the loss in the model's precision.

With tied embeddings the first stage owns the matrix and its optimizer state. The last stage is sent the weights
when a step begins and sends its gradient when the backward passes end: no second state, and no two copies that drift.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from plinth.training.attention import attention_mask, rotary
from plinth.training.config import RunConfig
from plinth.training.data import Batch
from plinth.training.engine import Engine, Rank, accumulate
from plinth.training.model import Decoder
from plinth.training.parallel.decoder import whole
from plinth.training.parallel.topology import ModelParallelUnit, Topology


@dataclass(frozen=True)
class Stage:
    """Which part of the model this rank holds, and its neighbours' global ranks."""

    index: int
    count: int
    ranks: list[int]  # of this pipeline, first stage first

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.count - 1

    def layers(self, total: int) -> range:
        """Its blocks; the first stages take one more where they do not divide evenly, for the last has the head."""
        each, more = divmod(total, self.count)
        start = self.index * each + min(self.index, more)
        return range(start, start + each + (self.index < more))


class PipelineEngine(Engine):
    """As `Engine`, of one stage. `parameters` and losses are those of the whole model, on every rank."""

    def __init__(self, config: RunConfig, rank: Rank) -> None:
        super().__init__(config, rank)
        self.deepspeed.enable_backward_allreduce = False  # once, after the gradients of tied embeddings have met
        for parameter in self.module.parameters():  # DeepSpeed counts these in norms, of others the first rank's
            parameter.model_parallel = hasattr(parameter, "shard") or self.topology.place.tensor == 0  # type: ignore[attr-defined]
        self._dtype = next(self.module.parameters()).dtype
        self._tied = _Tied(self) if config.model.tied_embeddings else None

    def _model(self) -> Decoder:
        shape = self.topology.shape
        self.stage = Stage(self.topology.place.pipeline, shape.pipeline, self.topology.members(("pipeline",)))
        return cut(super()._model(), self.stage)

    def _unit(self) -> Any:
        return PipelineUnit(self.topology)

    def _attempt(self, batch: Batch) -> Tensor:
        engine, micro_batches = self.deepspeed, len(batch.tokens)
        accumulate(engine, micro_batches)
        self.stats.again()
        self.stats.gradient_scale = self._loss_scale / micro_batches
        engine.set_gradient_accumulation_boundary(False)
        if self._tied is not None:
            self._tied.receive_weights()
        total = self._schedule(batch)
        dist.broadcast(total, self.stage.ranks[-1], group=self.topology.pipeline)
        engine.set_gradient_accumulation_boundary(True)
        if self._tied is not None:
            self._tied.send_gradient()
        engine.allreduce_gradients()
        if self._norm_is_ours:
            self._norm = self._gradient_norm()
        if self.on_gradient is not None:
            self.on_gradient(total)
        engine.step()
        return total

    def _schedule(self, batch: Batch) -> Tensor:
        """All forward and backward passes of a step; the mean loss on the last stage, zero elsewhere."""
        total = torch.zeros((), dtype=torch.float64, device=self.rank.device)
        waiting: deque[tuple[Tensor | None, Tensor]] = deque()
        count, weights = len(batch.tokens), batch.weights(self.config.data_ranks)
        numbers = iter(range(count))
        warm_up = min(self.stage.count - 1 - self.stage.index, count)
        exchange = _Neighbours(self.stage, self._activations(batch))

        def forward(x: Tensor | None) -> Tensor:
            micro = next(numbers)
            tokens, segments = batch.tokens[micro], batch.segments[micro]
            scored = None if batch.scored is None else batch.scored[micro]
            whole = not (segments[:, :-1] != segments[:, :1]).any()  # seen here, where it costs no wait
            y: Tensor = self.deepspeed(*self._on_device(tokens, segments, scored), x=x, whole=whole)
            if self.stage.last:
                y = y if weights is None else y * weights[micro]
                total.add_(y.detach().double() / count)
            waiting.append((x, y))
            return y.detach()

        def backward(gradient: Tensor | None) -> Tensor | None:
            x, y = waiting.popleft()
            if gradient is None:
                self.deepspeed.backward(y)
            else:
                self.deepspeed.backward(_Received.apply(y, gradient), scale_wrt_gas=False)  # type: ignore[no-untyped-call]
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

    def _activations(self, batch: Batch) -> Tensor:
        """What passes between stages looks like this: [B, S, D] in the precision of the model, without memory."""
        _, micro, length = batch.tokens.shape
        return torch.empty(micro, length - 1, self.config.model.dim, dtype=self._dtype, device="meta")

    def _gradient_norm(self) -> Tensor:
        kept = [p.grad for p in self.module.parameters() if p.grad is not None and getattr(p, "model_parallel", False)]
        total = nn.utils.get_total_norm(kept).square().to(self.rank.device)
        dist.all_reduce(total, group=self.deepspeed.mpu.get_model_parallel_group())
        return total.sqrt()

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters in the order of the undivided model, one at a time, on the CPU; a collective."""
        with torch.device("meta"):
            undivided = Decoder(self.config.model, self.config.vocab_size)
        ours = dict(self.module.named_parameters())
        for name, meta in undivided.named_parameters():
            if name in ours:
                value = whole(name, ours[name].detach(), self.topology).contiguous()
            else:
                value = torch.empty(meta.shape, dtype=self._dtype, device=self.rank.device)
            owner = _owner(name, self.config.model.layers, self.stage)
            dist.broadcast(value, self.stage.ranks[owner], group=self.topology.pipeline)
            yield name, value.cpu().clone()


class PipelineUnit(ModelParallelUnit):
    """To DeepSpeed the ranks of one replica, over stages and tensor ranks, are a model-parallel group."""

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


def cut(model: Decoder, stage: Stage) -> Decoder:
    """The decoder, reduced to one stage in place. What remains keeps its names.

    Its `forward` takes (tokens, segments, targets, x): the activations of the stage before, or None on the first; it
    returns activations, or the loss on the last.
    """
    blocks = {str(index): model.layers[index] for index in stage.layers(len(model.layers))}
    setattr(model, "layers", nn.ModuleDict(blocks))  # noqa: B010 - mypy: another class, the same names
    if not stage.first:
        tied = model.embed_tokens.detach()
        del model.embed_tokens
        if stage.last and model.config.tied_embeddings:
            model.__dict__["embed_tokens"] = tied  # no parameter: the first stage trains it
    if not stage.last:
        del model.norm
        if not model.config.tied_embeddings:
            del model.lm_head
    setattr(model, "forward", partial(_forward, model, stage))  # noqa: B010 - mypy forbids it as an assignment
    return model


def _forward(
    model: Decoder,
    stage: Stage,
    tokens: Tensor,
    segments: Tensor | None,
    targets: Tensor,
    *,
    x: Tensor | None = None,
    whole: bool | None = None,
) -> Tensor:
    """`Decoder.forward` of one stage."""
    x = model.embed(tokens) if x is None else x
    mask = attention_mask(segments, x.dtype, whole=whole)
    rotation = rotary(model.config, torch.arange(x.shape[1], device=x.device), x.dtype)
    for layer in cast(nn.ModuleDict, model.layers).values():
        x = layer(x, rotation, mask)
    return model.head(model.norm(x), targets) if stage.last else cast(Tensor, x)


class _Received(torch.autograd.Function):
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


class _Neighbours:
    """What goes to and comes from the stages before and after.

    What two neighbours exchange at the same moment is one batch of operations: NCCL would wait for ever when both
    sent first.
    """

    def __init__(self, stage: Stage, like: Tensor) -> None:
        self._like = like
        self._before = None if stage.first else stage.ranks[stage.index - 1]
        self._after = None if stage.last else stage.ranks[stage.index + 1]
        self._device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"

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
        self._send(operations, forward_to, self._after)
        self._send(operations, backward_to, self._before)
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()
        return (None if x is None else x.requires_grad_()), gradient

    def _receive(self, operations: list[dist.P2POp], peer: int | None) -> Tensor | None:
        if peer is None:
            return None
        buffer = torch.empty_like(self._like, device=self._device)
        operations.append(dist.P2POp(dist.irecv, buffer, peer))
        return buffer

    def _send(self, operations: list[dist.P2POp], tensor: Tensor | None, peer: int | None) -> None:
        if peer is not None and tensor is not None:
            operations.append(dist.P2POp(dist.isend, tensor.contiguous(), peer))


class _Tied:
    """The embedding matrix where it is used twice: owned by the first stage, borrowed by the last."""

    def __init__(self, engine: PipelineEngine) -> None:
        self._engine, stage = engine, engine.stage
        self._peer = stage.ranks[-1] if stage.first else stage.ranks[0] if stage.last else None
        self._gradient: Tensor | None = None
        if stage.last:
            borrowed = cast(Decoder, engine.module).embed_tokens.to(engine.rank.device, engine._dtype)
            borrowed = borrowed.clone().requires_grad_()
            borrowed.register_post_accumulate_grad_hook(self._add)  # type: ignore[no-untyped-call]
            engine.module.__dict__["embed_tokens"] = borrowed

    def _add(self, borrowed: Tensor) -> None:
        """Micro batches are added in FP32, as DeepSpeed does for the parameters it knows."""
        assert borrowed.grad is not None
        if self._gradient is None:
            self._gradient = torch.zeros_like(borrowed, dtype=torch.float32)
        self._gradient += borrowed.grad
        borrowed.grad = None

    def receive_weights(self) -> None:
        """The last stage gets what the first has now, however it came to be: by a step or from a checkpoint."""
        if self._peer is None:
            return
        matrix = cast(Decoder, self._engine.module).embed_tokens
        self._one(matrix.detach(), sends=self._engine.stage.first)

    def send_gradient(self) -> None:
        """The last stage's gradient is added to the first's."""
        if self._peer is None:
            return
        if self._engine.stage.last:
            assert self._gradient is not None
            self._one(self._gradient, sends=True)
            self._gradient = None
            return
        parameter = cast(Decoder, self._engine.module).embed_tokens
        received = torch.empty_like(parameter, dtype=torch.float32)
        self._one(received, sends=False)
        _accumulated(self._engine.deepspeed.optimizer, parameter).view(-1).add_(received.view(-1))

    def _one(self, tensor: Tensor, *, sends: bool) -> None:
        operation = dist.P2POp(dist.isend if sends else dist.irecv, tensor, self._peer)
        for work in dist.batch_isend_irecv([operation]):
            work.wait()


def _accumulated(outer: Any, parameter: Any) -> Tensor:
    """Where DeepSpeed has added up the gradient of a parameter."""
    if hasattr(parameter, "_hp_grad"):  # BF16 with ZeRO-1
        return cast(Tensor, parameter._hp_grad)
    if hasattr(outer, "get_gradient_for_reduction"):
        return cast(Tensor, outer.get_gradient_for_reduction(parameter))
    return cast(Tensor, parameter.grad)


def _owner(name: str, layers: int, stage: Stage) -> int:
    """The stage that trains a parameter."""
    parts = name.split(".")
    if parts[0] == "layers":
        return next(n for n in range(stage.count) if int(parts[1]) in replace(stage, index=n).layers(layers))
    return 0 if name == "embed_tokens" else stage.count - 1
