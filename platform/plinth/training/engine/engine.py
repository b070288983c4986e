"""Small interface to DeepSpeed: build the engine, train one step, iterate over whole parameters.

In every ZeRO stage the optimizer is from PyTorch or from Plinth (`optimization`), because DeepSpeed's own CPU Adam does
not resume bit for bit.

Does not belong here: setup of the process group (ranks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from plinth.model.attention import Layout
from plinth.model.decoder import Decoder
from plinth.model.division import buffers, initialise
from plinth.tokens.reading.compact_batch import CompactBatch
from plinth.tokens.reading.loader import RankBatch
from plinth.training.config import RunConfig
from plinth.training.data import StepBatch
from plinth.training.engine.batches import ModelInput, expand_batch
from plinth.training.engine.deepspeed_engine import deepspeed_config, sums_gradients
from plinth.training.engine.deepspeed_engine import initialize as initialize_deepspeed
from plinth.training.engine.device_measurements import DeviceGradients, LayerMonitor, keeps_back
from plinth.training.engine.expert_balance import ExpertBalance
from plinth.training.engine.optimization import Muon, parameter_groups, set_rates
from plinth.training.engine.ranks import (
    DTYPES,
    Rank,
    connect,
    convert,
    join,
    leave,
    precision_of,
    prepare,
    require_device,
    require_float8,
    require_gradient,
    seed,
)
from plinth.training.engine.weights import MasterWeights, WeightAverage, master_weights, weight_source
from plinth.training.parallel.divided_decoder import divided_decoder, gathered, partition_initialised, wrap_blocks
from plinth.training.parallel.topology import ModelParallelUnit, Topology
from plinth.training.parameters.optimizers import Groups, make_optimizer
from plinth.training.telemetry import communication
from plinth.training.telemetry.step_clock import StepClock

__all__ = ["Rank", "TrainingEngine", "accumulate", "connect", "join", "leave", "prepare", "seed"]

#: Maximum attempts of a step whose gradient overflows in FP16: from 2^32 down to 2^0, with hysteresis.
OVERFLOWS = 64


@dataclass(frozen=True)
class PassHooks:
    """Callbacks of training hooks during the forward and backward passes of a step; see `RankHook`."""

    inputs: tuple[Callable[[StepBatch, int, ModelInput, bool], Mapping[str, Any]], ...] = ()
    loss: tuple[Callable[[Tensor, ModelInput], Tensor], ...] = ()
    after_backward: tuple[Callable[[Tensor], None], ...] = ()
    gradient: Callable[[StepBatch], tuple[Tensor, Tensor]] | None = None


NO_HOOKS = PassHooks()


class TrainingEngine:
    """One rank's part of the model and its optimizer, divided as the run's ZeRO stage requires."""

    def __init__(self, config: RunConfig, rank: Rank, hooks: PassHooks = NO_HOOKS) -> None:
        import deepspeed

        self.config, self.rank, self.hooks = config, rank, hooks
        self.precision = precision_of(config, rank.device)
        require_device(self.precision, rank.device)
        require_gradient(config.parallel.attention, rank.device)
        require_float8(config, self.precision, rank.device)
        self.topology = Topology(config.parallel, config.ranks, rank.index)
        self.on_gradient: Callable[[Tensor], None] | None = None
        self.clock = StepClock.of(rank.device)
        communication.measure(self.clock)
        model = self._model()
        # with a hook's gradient, statistics would cover single sequences
        every, divided_by = config.telemetry.layers_every * (hooks.gradient is None), config.parallel.tensor
        self.stats = LayerMonitor(model, config.model.layers, every, ranks=config.ranks, tensor_ranks=divided_by)
        #: Load of the experts; None in a dense model.
        self.balance: ExpertBalance | None = None
        if config.model.experts:
            self.balance = ExpertBalance(model, self.topology, config.telemetry.layers_every * (hooks.gradient is None))
        groups = parameter_groups(config.optimizer, config.model, model.named_parameters())
        mpu = self._unit()
        deepspeed.utils.groups.mpu = mpu  # DeepSpeed would reuse that of an earlier engine
        self._open(model, groups, mpu)
        scaler = getattr(self.deepspeed.optimizer, "loss_scaler", None)
        if scaler is not None and hasattr(scaler, "raise_error_at_min_scale"):
            scaler.raise_error_at_min_scale = False  # the guard judges an overflow at the minimum scale

    def _open(self, model: Decoder, groups: Groups, mpu: ModelParallelUnit | None) -> None:
        """Initialize the model's weights and an optimizer, and pass both to DeepSpeed."""
        config, stage = self.config, self.config.parallel.zero_stage
        own_masters = self.precision == "bf16" and stage == 0
        made = None if own_masters else self._optimizer(groups)
        theirs = self.precision == "fp16" or (stage > 0 and made is not None and not keeps_back(made))
        size, gpu = sum(p.numel() for p in model.parameters()), self.rank.device.type == "cuda"
        settings = deepspeed_config(config, self.precision, size, theirs=theirs, gpu=gpu)
        self._initialise(model, settings, mpu)
        optimizer = self._optimizer(master_weights(groups)) if made is None else made
        masters = MasterWeights(groups, optimizer) if own_masters else None
        self.deepspeed = initialize_deepspeed(
            model=model,
            optimizer=optimizer,
            config=settings,
            mpu=mpu,
            dist_init_required=False,
            bucket=config.parallel.reduce_bucket_elements,
            device_norm=not theirs,
            topology=self.topology,
        )
        #: Gradient of a step on the device; None if DeepSpeed computes its norm: in FP16, and with an optimizer that
        # cannot
        #: skip an update.
        self.gradients = None if theirs else self._device_gradients()
        if isinstance(optimizer, Muon):
            optimizer.division.follow(self.deepspeed.optimizer, optimizer.param_groups)
        #: Exponential mean of the weights, if the recipe enables it.
        self.average = WeightAverage(optimizer) if config.optimizer.ema_decay is not None else None
        if masters is not None:
            masters.follow()

    def _optimizer(self, groups: Groups) -> torch.optim.Optimizer:
        return make_optimizer(groups, self.config.optimizer, self.config.provenance.get("optimizer"))

    def _device_gradients(self) -> DeviceGradients:
        return DeviceGradients(
            self.deepspeed,
            self.config.optimizer.grad_clip,
            stage=self.config.parallel.zero_stage,
            counts_all=self.topology.place.tensor == 0,
            replicas=len(self.topology.replica_ranks),
            summed=sums_gradients(self.config, self.precision),
            experts=self.config.parallel.expert,
        )

    def _model(self) -> Decoder:
        """Build this rank's part of the model, without weights."""
        config = self.config
        model = divided_decoder(config.model, config.vocab_size, self.topology, self.rank.device, self.dtype)
        model.attend_by(config.parallel.attention)
        if config.float8 != "none":
            convert(model, config.float8)
        wrap_blocks(model.blocks, config.parallel)
        return model

    def _initialise(self, model: Decoder, settings: dict[str, Any], mpu: ModelParallelUnit | None) -> None:
        """Initialize this rank's part of the model. A rank reads or creates at most its own part plus one parameter."""
        with weight_source(self.config) as initial:
            if self.config.parallel.zero_stage == 3:
                partition_initialised(model, initial, settings, mpu)
            else:
                initialise(model, initial)

    def _unit(self) -> ModelParallelUnit | None:
        """Return the process groups that DeepSpeed needs if the model is divided over ranks, otherwise None."""
        return ModelParallelUnit(self.topology) if self.topology.tensor is not None else None

    def rotate_at(self, step: int) -> None:
        """Set the rotary positions for a step. No other setting of the model can change during a run."""
        if self.config.rotary_schedule:
            decoder = next(one for one in self.module.modules() if isinstance(one, Decoder))  # through any wrappers
            decoder.config = self.config.model_at(step)

    def train_step(self, batch: StepBatch, lr: float) -> tuple[Tensor, Tensor]:
        """Take one optimizer step. Return this rank's mean loss and the global gradient norm.

        Both are FP64 scalars on the device.

        The host does not wait for the device. `on_gradient` receives the loss when the gradient is complete, before the
        update. If the gradient overflows in FP16, the step is repeated with a smaller loss scale, so that every step
        trains on its batch.
        """
        self._set_rate(lr)
        total = self._attempt(batch) if self.hooks.gradient is None else self._hooked_attempt(batch)
        for _ in range(OVERFLOWS if self.precision == "fp16" else 0):
            if not self.deepspeed.optimizer.overflow or self.deepspeed.optimizer.loss_scale <= self._least_scale:
                break
            total = self._attempt(batch)
        self.stats.end()
        if self.balance is not None:
            self.balance.update(self._skipped())
        return total, self.gradient_norm()

    def _attempt(self, batch: StepBatch) -> Tensor:
        """Run forward, backward and update, and return the mean loss of this rank."""
        accumulate(self.deepspeed, len(batch))
        self._again()
        self.stats.gradient_scale = self._loss_scale / len(batch)
        total = torch.zeros((), dtype=torch.float64, device=self.rank.device)
        weights = batch.weights(self.config.data_ranks)
        for micro, rows in enumerate(batch.micro, 1):
            self.clock.enter("forward")
            unbroken = rows.unbroken(batch.length)  # checked on the host, without a wait
            inputs = self._on_device(rows, batch.length)
            more: dict[str, Any] = {}
            for hook_inputs in self.hooks.inputs:
                more |= hook_inputs(batch, micro - 1, inputs, unbroken)
            loss = self.deepspeed(*inputs, whole=unbroken, **more)
            for hook_loss in self.hooks.loss:
                loss = hook_loss(loss, inputs)
            if weights is not None:  # gives every scored target of the global batch the same weight
                loss = loss * weights[micro - 1]
            total += loss.detach().double() / len(batch)
            self.clock.enter("backward")
            self.deepspeed.backward(loss)
            self._step(total if micro == len(batch) else None)
        return total

    def _again(self) -> None:
        """Discard what the forward passes of an earlier attempt have measured."""
        self.stats.again()
        if self.balance is not None:
            self.balance.again()

    def _skipped(self) -> Any:
        """Return a number or flag that is not 0 if the update of this step was skipped; None if it cannot be."""
        if self.gradients is None:  # DeepSpeed looks for an overflow
            return bool(self.deepspeed.optimizer.overflow)
        return getattr(self.deepspeed.basic_optimizer, "found_inf", None)

    def _hooked_attempt(self, batch: StepBatch) -> Tensor:
        """Run a step like `_attempt`, but backpropagate the scalar that a hook returns."""
        assert self.hooks.gradient is not None
        accumulate(self.deepspeed, 1)
        self.clock.enter("forward")  # forward and backward, sequence by sequence
        total, surrogate = self.hooks.gradient(batch)
        self.clock.enter("backward")
        self.deepspeed.backward(surrogate)
        self._step(total)
        return total

    def _step(self, total: Tensor | None) -> None:
        """Run DeepSpeed's step after a backward pass. After the last backward pass, `total` is the loss of the whole
        step."""
        if total is not None:
            self._complete(total)
        self.clock.enter("optimizer")
        self.deepspeed.step()

    def _complete(self, total: Tensor) -> None:
        """Measure the complete gradient of a step and call the hooks, before the update."""
        if self.gradients is not None:
            self.gradients.measure()
        for hook in self.hooks.after_backward:
            hook(total)
        if self.on_gradient is not None:
            self.on_gradient(total)

    def sequence_loss(self, batch: StepBatch, rows: CompactBatch) -> Tensor:
        """Return the model's own loss over the given rows of a step, without hooks."""
        loss: Tensor = self.module(*self._on_device(rows, batch.length), whole=rows.unbroken(batch.length))
        return loss

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Return a context in which `loss_of` may be called. All ranks must enter it. Gradients are off, and the loss
        has no z-loss."""
        self.module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.module.train()

    def loss_of(self, tokens: Any, scored: Any) -> Tensor:
        """Return this rank's mean loss over the scored targets (FP32, on the device), or 0 if no target is scored.

        Args:
            tokens: [M, S + 1], one document per row.
            scored: mask of scored targets [M, S].
        """
        rows = CompactBatch.of(tokens, None, scored)
        loss: Tensor = self.deepspeed(*self._on_device(rows, tokens.shape[1] - 1), whole=True)
        return loss

    def arranged(self, tokens: Tensor, *, layout: Layout) -> Tensor:
        """Run `Decoder.arranged` on the live model.

        Return two numbers per target of a layout: -ln p, and 1 if the target is the most probable token, otherwise 0.
        The result [N, 2] is FP32 on the device. A sequence rank returns zeros for targets on other ranks. A pipeline
        stage before the last returns only zeros.
        """
        found: Tensor = self.deepspeed(tokens, layout=layout)
        return found

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of parameters and activations."""
        return DTYPES[self.precision]

    def gradient_norm(self) -> Tensor:
        """Return the global norm of this step's gradient before clipping. Call this once the optimizer's step starts.

        The norm is infinite if DeepSpeed measures it and has found an overflow.
        """
        if self.gradients is not None:
            assert self.gradients.norm is not None
            return self.gradients.norm
        return torch.as_tensor(self.deepspeed.optimizer._global_grad_norm, device=self.rank.device).double()

    @property
    def module(self) -> nn.Module:
        module: nn.Module = self.deepspeed.module
        return module

    @property
    def _loss_scale(self) -> float:
        """Loss scale in FP16; 1 in other precisions."""
        return float(self.deepspeed.optimizer.loss_scale) if self.precision == "fp16" else 1.0

    @property
    def _least_scale(self) -> float:
        """Minimum FP16 loss scale. An overflow at this scale does not lower it further."""
        scale = self.config.parallel.loss_scale
        return scale.static or float(scale.minimum)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield whole parameters in order, one at a time, on the CPU. All ranks must iterate together."""
        import deepspeed

        for name, parameter in self.module.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter], enabled=self.config.parallel.zero_stage == 3):
                yield name, gathered(parameter, self.topology).cpu().clone()

    def optimizer_tensors(self) -> Iterator[Tensor]:
        """Yield this rank's part of the master weights and optimizer state, in a fixed order, without a copy."""
        outer, inner = self.deepspeed.optimizer, self.deepspeed.basic_optimizer
        masters = getattr(outer, "fp32_partitioned_groups_flat", None)  # ZeRO-3 empties its groups between steps
        if masters is None:
            masters = [parameter for group in inner.param_groups for parameter in group["params"]]
        for master in masters:
            yield master.detach()
            state = inner.state.get(master, {})
            for key in sorted(state):
                if isinstance(state[key], Tensor):
                    yield state[key].detach()
        yield from (buffer for _, buffer in buffers(self.module))

    def _set_rate(self, lr: float) -> None:
        set_rates(self.deepspeed.optimizer.param_groups, lr)

    def _on_device(self, rows: CompactBatch, length: int) -> ModelInput:
        if self.balance is not None:
            self.balance.streams = rows.streams if isinstance(rows, RankBatch) else None
        return expand_batch(rows, length, self.rank.device, segments=self.config.model.document_mask)


def accumulate(engine: Any, micro_batches: int) -> None:
    """Set the number of micro batches of the next optimizer step.

    DeepSpeed counts micro batches over the whole run, and a step ends at each multiple of the accumulation. This would
    no longer match after a change of the global batch size, so the count restarts in every step.
    """
    if micro_batches != engine.gradient_accumulation_steps():
        engine.set_train_batch_size(micro_batches * engine.train_micro_batch_size_per_gpu() * engine.dp_world_size)
        if hasattr(engine.optimizer, "gradient_accumulation_steps"):  # ZeRO's own copy, read when offloading
            engine.optimizer.gradient_accumulation_steps = micro_batches
    engine.micro_steps = 0
