"""Changes to DeepSpeed's engine (0.19) that avoid rounding of gradients and host waits.

    BF16 with ZeRO-1     DeepSpeed: `BF16_Optimizer` reduces at the end, without overlap, in buckets of 500M elements;
                         here the optimizer of ZeRO-2 runs with undivided FP32 gradients, as in other precisions
    without ZeRO         DeepSpeed: buckets of 500M elements; here the bucket size comes from the recipe
    end of a backward    DeepSpeed: with overlap (ZeRO-1, ZeRO-2) and in ZeRO-3 the host waits for the reduction; here
                         the stream waits
    norm and overflow    DeepSpeed reads both on the host; here the device reads them (`device_measurements`)
    reduced gradients    DeepSpeed: ZeRO-1 and ZeRO-2 keep gradients of large matrices until the backward pass ends;
                         here they are released
    sum of a bucket      DeepSpeed: ZeRO-1 and ZeRO-2 sum a copy of the bucket and copy the sum back; here the bucket
                         itself is summed, with the same bits
    end of a step        DeepSpeed: ZeRO-3 gathers small parameters and waits for the device; here the stream waits

Some host waits remain. In ZeRO-3 the host runs at most two reductions and a few gathers ahead, which limits memory, and
with a single rank it waits for every gather. An offloaded optimizer computes on the host and waits for its gradient. In
FP16 the host reads the overflow flag once per step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from plinth.training.config import RunConfig
from plinth.training.parallel.topology import EXPERT_GROUP, Topology, communication_dtype, overlaps
from plinth.training.parameters.parallel import with_settings


def initialize(*, bucket: int, device_norm: bool, topology: Topology, **given: Any) -> Any:
    """Call `deepspeed.initialize`, apply the changes of this module, and return the engine.

    Args:
        bucket: number of elements per bucket for the reduction of gradients without ZeRO.
        device_norm: True if the device checks norm and overflow and the host reads neither.
        topology: groups of this rank, of which those of experts are registered with DeepSpeed.
        given: arguments of `deepspeed.initialize`.
    """
    import deepspeed

    _register_experts(topology)
    with _own_engine(bucket, topology.experts is not None):
        engine, outer, _, _ = deepspeed.initialize(**given)
    if device_norm:
        _leave_norm_out(outer)
    if hasattr(outer, "reduce_ipg_grads"):
        _release_reduced(outer)
        if topology.experts is None:  # else parts of a bucket have different groups
            _sum_in_place(outer)
    if torch.cuda.is_available():
        _order_by_streams(outer)
    if hasattr(outer, "persistent_parameters"):
        _gather_persistent_on_stream(outer)
    return engine


def _register_experts(topology: Topology) -> None:
    """Tell DeepSpeed which ranks divide the experts and which have the same; remove those of an earlier engine."""
    from deepspeed.utils import groups

    known = ("_EXPERT_PARALLEL_GROUP", "_EXPERT_DATA_PARALLEL_GROUP")
    for name in known:
        getattr(groups, name).clear()
        getattr(groups, f"{name}_RANKS").clear()
    if topology.experts is None:
        return
    ours = (
        (topology.experts, topology.expert_members),
        (topology.expert_replicas, topology.expert_replica_ranks),
    )
    for name, (group, members) in zip(known, ours, strict=True):
        getattr(groups, name)[EXPERT_GROUP] = group
        getattr(groups, f"{name}_RANKS")[EXPERT_GROUP] = members


@contextmanager
def _own_engine(bucket: int, divided_experts: bool) -> Iterator[None]:
    import deepspeed
    from deepspeed.runtime.engine import ZERO_OPTIMIZATION

    theirs = deepspeed.DeepSpeedEngine

    class PlinthEngine(theirs):  # type: ignore[misc, valid-type]
        def _do_optimizer_sanity_check(self, basic_optimizer: Any) -> Any:
            if self.zero_optimization():
                return ZERO_OPTIMIZATION
            return super()._do_optimizer_sanity_check(basic_optimizer)

        def _configure_distributed_model(self, model: Any) -> None:
            super()._configure_distributed_model(model)
            self.has_moe_layers = divided_experts  # DeepSpeed looks for its own layers

        def allreduce_gradients(self, bucket_size: int = bucket) -> None:
            super().allreduce_gradients(bucket_size)

    deepspeed.DeepSpeedEngine = PlinthEngine
    try:
        yield
    finally:
        deepspeed.DeepSpeedEngine = theirs


def _leave_norm_out(outer: Any) -> None:
    """Replace DeepSpeed's norm and overflow checks with constants, in the cases where no DeepSpeed setting disables
    them."""
    if hasattr(outer, "_get_norm_groups"):  # ZeRO-3
        outer._get_norm_groups = lambda: [0.0]
    elif getattr(outer, "cpu_offload", False):  # ZeRO-1 and ZeRO-2
        outer.scaled_global_norm = lambda: torch.zeros(())
        outer.update_offload_overflow_tracker = lambda gradient: None  # saves one read per parameter


def _release_reduced(outer: Any) -> None:
    """Release gradients in ZeRO-1 and ZeRO-2 as soon as they are reduced, if another buffer or another rank stores
    their sum.

    DeepSpeed keeps gradients larger than a bucket until the backward pass ends.
    """
    reduce = outer.reduce_ipg_grads

    def reduced(comm_dtype: torch.dtype | None = None) -> None:
        gone = [each for bucket in outer.ipg_buckets.values() for each in bucket.params]
        reduce(comm_dtype)
        for group, index, number in gone if not outer.cpu_offload else ():
            if outer._use_compact_grad_partition_buffer(group) or not outer.is_param_in_current_partition[number]:
                outer.clear_grad_attribute(outer.bit16_groups[group][index])

    outer.reduce_ipg_grads = reduced


def _sum_in_place(outer: Any) -> None:
    """Sum a bucket of ZeRO-1 or ZeRO-2 over ranks in its own memory. Division and order are those of DeepSpeed's path
    for `reduce_scatter`, which this replaces, so the bits are equal."""
    import deepspeed

    group, shared = outer.dp_process_group, outer.sequence_parallel_size
    ranks = deepspeed.comm.get_world_size(group=group) / float(shared)

    def summed(bucket: Tensor, dtype: torch.dtype) -> Tensor:
        if outer.gradient_average:
            bucket.div_(ranks)
        sent = bucket.to(torch.float32 if shared > 1 else dtype)  # the same tensor if it has this type
        deepspeed.comm.all_reduce(sent, group=group)
        if sent is not bucket:
            bucket.copy_(sent)
        return sent

    outer.reduce_scatter, outer.gradient_reduction_w_predivide = False, summed


def _order_by_streams(outer: Any) -> None:
    """Make GPU streams wait for each other where DeepSpeed would make the host wait."""
    stream = getattr(outer, "reduce_and_partition_stream", None)
    if stream is not None:  # ZeRO-3
        outer.reduce_and_partition_stream = _AwaitedStream.of(stream)
    elif getattr(outer, "overlap_comm", False):
        _end_backward_without_wait(outer)


class _AwaitedStream(torch.cuda.Stream):
    """Stream whose `synchronize` makes the current stream wait instead of the host."""

    @classmethod
    def of(cls, stream: Any) -> _AwaitedStream:
        number, index, kind = stream.stream_id, stream.device_index, stream.device_type
        return cls(stream_id=number, device_index=index, device_type=kind)

    def synchronize(self) -> None:
        torch.cuda.current_stream().wait_stream(self)


def _end_backward_without_wait(outer: Any) -> None:
    """Reduce the remaining gradients in ZeRO-1 and ZeRO-2 without a host wait.

    The stream of the backward pass waits for the reduction. DeepSpeed then continues as without overlap; its buckets
    are empty, so it has nothing to reduce.

    A gradient larger than a bucket is released while the reduction stream still reads it, so `record_stream` is called.
    """
    epilogue, average = outer.independent_gradient_partition_epilogue, outer.average_tensor

    def ended() -> None:
        outer.reduce_ipg_grads()
        torch.cuda.current_stream().wait_stream(outer.reduction_stream)
        outer.overlap_comm = False
        try:
            epilogue()
        finally:
            outer.overlap_comm = True

    def recorded(gradient: Tensor, dtype: torch.dtype) -> None:
        gradient.record_stream(outer.reduction_stream)
        average(gradient, dtype)

    outer.independent_gradient_partition_epilogue, outer.average_tensor = ended, recorded


def _gather_persistent_on_stream(outer: Any) -> None:
    """Gather the parameters that ZeRO-3 keeps whole between steps, in one call on the current stream."""
    kept, finish = outer.persistent_parameters, outer._post_step
    if not kept or torch.distributed.get_world_size(outer.dp_process_group) == 1:
        return

    def finished(timers: Any) -> None:
        outer.persistent_parameters = []
        try:
            finish(timers)
        finally:
            outer.persistent_parameters = kept
        kept[0].all_gather_coalesced(kept).wait()

    outer._post_step = finished


def deepspeed_config(
    config: RunConfig, precision: str, parameters: int, *, theirs: bool = False, gpu: bool = False
) -> dict[str, Any]:
    """Return the configuration for `deepspeed.initialize`.

    DeepSpeed treats sequence ranks as data ranks, so its batch size counts them; Plinth's batch size does not. Unless
    `theirs` is set, DeepSpeed neither measures nor clips the gradient; the device does both (`device_measurements`).
    Without ZeRO, DeepSpeed has no FP32 accumulation for BF16. The configuration then declares FP32, and
    `master_weights` provides the BF16 part.

    Args:
        config: configuration of the run.
        precision: the resolved precision, never `auto`.
        parameters: number of parameters on this rank; a bucket is at most that large.
        theirs: True if DeepSpeed computes norm, clipping and overflow. This is so in FP16, because the loss scale needs
            them, and with an optimizer that cannot skip an update.
        gpu: True if this rank computes on a GPU.

    Raises:
        TrainingError: the recipe's block `deepspeed` sets a key that the engine owns.
    """
    settings: dict[str, Any] = {
        "train_batch_size": config.steps.batch(0) * config.parallel.sequence,
        "train_micro_batch_size_per_gpu": config.micro_batch_sequences,
        "gradient_accumulation_steps": config.accumulation(),
        "gradient_clipping": config.optimizer.grad_clip if theirs else 0.0,
        "gradient_allreduce_op": "sum" if not theirs and sums_gradients(config, precision) else "mean",
        "communication_data_type": communication_dtype(config.parallel),
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # DeepSpeed's CPU Adam does not resume bit for bit
        "zero_optimization": _zero(config, max(parameters, 1), gpu) | _norm(config, theirs),
        "bf16": {"enabled": precision == "bf16" and config.parallel.zero_stage > 0, "check_grad_overflow": theirs},
        "fp16": _loss_scale(config, precision),
        "timers": {"throughput": {"enabled": False}},  # it would wait for the device in every micro batch
        "steps_per_print": None,
    }
    if precision != "fp32" and config.parallel.zero_stage > 0:
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    return with_settings(settings, config.deepspeed)


def sums_gradients(config: RunConfig, precision: str) -> bool:
    """Return True if gradients are summed over replicas first and divided by the number of replicas afterward.

    DeepSpeed's ZeRO-2 would divide before the sum, in BF16, where a division by 3 is rounded.
    """
    return precision == "bf16" and config.parallel.zero_stage == 2


def _zero(config: RunConfig, parameters: int, gpu: bool) -> dict[str, Any]:
    parallel = config.parallel
    gathered = min(parallel.gather_bucket_elements, parameters)
    zero: dict[str, Any] = {
        "stage": parallel.zero_stage,
        "overlap_comm": overlaps(parallel, gpu=gpu),
        "reduce_bucket_size": min(parallel.reduce_bucket_elements, parameters),
        "allgather_bucket_size": gathered + gathered % 2,  # DeepSpeed takes even numbers
    }
    if parallel.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if parallel.offload == "parameters":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return zero


def _norm(config: RunConfig, theirs: bool) -> dict[str, Any]:
    """Return DeepSpeed's settings for the gradient norm.

    DeepSpeed can disable its norm in ZeRO-1 and ZeRO-2 without offload. In other cases this module replaces the norm.
    """
    parallel = config.parallel
    left_out = not theirs and parallel.zero_stage in (1, 2) and parallel.offload == "none"
    return {"compute_grad_norm": False} if left_out else {}


def _loss_scale(config: RunConfig, precision: str) -> dict[str, Any]:
    scale = config.parallel.loss_scale
    return {
        "enabled": precision == "fp16",
        "loss_scale": scale.static,
        "initial_scale_power": scale.initial_power,
        "loss_scale_window": scale.window,
        "hysteresis": scale.hysteresis,
        "min_loss_scale": scale.minimum,
    }
