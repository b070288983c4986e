"""Ranking of all valid parallel layouts of a model over a number of devices, fastest first, each with its bottleneck.

A layout (`division` in the code) is legal if a recipe can use it (`training.parameters`). Degrees, ZeRO stage,
recomputation, offload and micro batch vary. Everything else is taken from the recipe, except that layouts that are
incompatible with `compile` are tried without it. Memory is computed by `memory`; time is

    step = compute / efficiency + bubble + exposed communication

    bubble    (p - 1) / m of the computing time, m micro batches (Narayanan et al., arXiv:2104.04473, section 2.2)
    tensor    four sums of activations per block and micro batch, two more if recomputed; never hidden
    sequence  two exchanges of queries, keys, values, outputs per block and micro batch (three if recomputed)
    pipeline  activations forward and gradients back, per micro batch
    experts   rows to the ranks of their experts and back, per sparse layer and micro batch, for an even load; the
              gradients back; twice more if recomputed. Never hidden, because the host waits for the sizes
    data      gradients in FP32: an all-reduce, in ZeRO-3 a reduce-scatter; from ZeRO-2 on, in each micro batch.
              Parameters are gathered once per step (ZeRO-1, -2) or twice per micro batch (ZeRO-3). The time is hidden
              behind the backward pass if `topology.overlaps`; ZeRO-3's gathers are hidden behind both passes
    host      offloaded states: gradients go to the host's memory (in ZeRO-3 in each micro batch, and those before it
              come back), AdamW's update moves data there, and updated parameters come back. Offloaded parameters move
              with every gather. The bandwidth is that between device and host; never hidden

A ring of n devices sends 2 (n - 1) / n of an all-reduce's bytes, and (n - 1) / n of the bytes of other collectives, at
the bandwidth of its slowest link. Groups within a machine (by `parallel.topology`'s numbering) use its internal links;
other groups use the links between machines. Latency, and the time of an optimizer on the device, are not included.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Literal, NamedTuple

from plinth.launch.devices import USABLE, Device
from plinth.model import architectures
from plinth.model.architectures import UPDATE_BYTES
from plinth.model.parameters import Model, repeats
from plinth.operation import memory
from plinth.operation.spending import STATED, Efficiency
from plinth.training.parallel.topology import communication_dtype, overlaps
from plinth.training.parameters.optimizers import Optimizer, problems_with_division
from plinth.training.parameters.parallel import Parallel, not_with, problems

#: Candidate sizes of a micro batch, in sequences.
MICRO_BATCHES = (1, 2, 4, 8)

OFFLOADS: tuple[Literal["none", "optimizer", "parameters"], ...] = ("none", "optimizer", "parameters")


class TrainingWork(NamedTuple):
    """Training work to plan. `parallel` is the recipe's section; each layout modifies it."""

    model: Model
    vocab_size: int
    sequence_tokens: int
    global_batch_sequences: int
    precision: memory.Precision = "bf16"
    parallel: Parallel = Parallel()
    optimizer: Optimizer = memory.ADAMW
    private: bool = False
    float8: bool = False
    undivided: frozenset[str] = frozenset()


class RankedDivision(NamedTuple):
    """One parallel layout in the ranking. Seconds are per step, at the middle of the assumed efficiencies."""

    data: int
    tensor: int
    pipeline: int
    sequence: int
    zero_stage: int
    activation_checkpointing: int  # as the recipe's key: 0 none, 1 all, n every n-th
    offload: Literal["none", "optimizer", "parameters"]
    compile: bool
    micro_batch: int
    accumulation: int
    memory_bytes: int
    over_bytes: int  # bytes beyond the planned memory of the device and its share of the host; 0 if it fits
    host_bytes: int  # bytes in host memory per device
    compute_s: float
    bubble_s: float
    exposed_s: dict[str, float]  # by axis
    expert: int = 1

    @property
    def step_s(self) -> float:
        return self.compute_s + self.bubble_s + sum(self.exposed_s.values())

    @property
    def division(self) -> str:
        """Description of degrees, ZeRO stage, micro batch, recomputation and offload."""
        every = self.activation_checkpointing
        again = ("", ", recomputed")[every] if every < 2 else f", every {every}th recomputed"
        held = "" if self.offload == "none" else f", {self.offload} offloaded"
        experts = "" if self.expert == 1 else f", experts over {self.expert}"
        return (
            f"data {self.data} x tensor {self.tensor} x pipeline {self.pipeline} x sequence {self.sequence}{experts}, "
            f"ZeRO {self.zero_stage}, micro batch {self.micro_batch}{again}{held}"
        )

    @property
    def reason(self) -> str:
        """Description of the bottleneck."""
        if self.over_bytes:
            return f"does not fit: {self.over_bytes / 1e9:,.1f} GB above the memory of the device"
        shares = {"bubble": self.bubble_s, **self.exposed_s}
        shown = (f"{name} {seconds / self.step_s:.0%}" for name, seconds in shares.items() if seconds > 0)
        return ", ".join(shown) or "computation only"


def rank(
    work: TrainingWork, ranks: int, device: Device, efficiency: Efficiency = STATED
) -> list[RankedDivision]:
    """Return all legal layouts: first those that fit, by time per step, then the others, by missing memory."""
    middle, counted = efficiency.middle, _Counted(work)
    found = [
        _candidate(work, block, micro, ranks, device, middle, counted) for block, micro in legal(work, ranks)
    ]
    return sorted(found, key=lambda one: (one.over_bytes, one.step_s, one.memory_bytes))


def of_block(
    work: TrainingWork, block: Parallel, micro: int, ranks: int, device: Device, efficiency: float
) -> RankedDivision:
    """Return one legal layout with its time and memory at an efficiency."""
    return _candidate(work, block, micro, ranks, device, efficiency, _Counted(work))


def span(one: RankedDivision, efficiency: Efficiency) -> tuple[float, float]:
    """Return the seconds per step at the best and the worst efficiency, for a layout that was ranked at the middle
    efficiency."""
    exposed = sum(one.exposed_s.values())
    computing = (one.compute_s + one.bubble_s) * efficiency.middle
    return computing / efficiency.high + exposed, computing / efficiency.low + exposed


def rank_flops(work: TrainingWork, block: Parallel, micro: int, ranks: int) -> float:
    """Return a rank's FLOPs per step. A pipeline's bubble counts as work, as it does in a rank's computation time."""
    accumulation = max(1, work.global_batch_sequences // (block.data_ranks(ranks) * micro))
    whole = _Counted(work).step(block.activation_checkpointing)
    return whole / ranks * (1 + (block.pipeline - 1) / accumulation)


def minimum_devices(work: TrainingWork, device: Device, most: int = 1024, *, offloaded: bool = False) -> int | None:
    """Return the smallest number of devices, a power of two, on which a layout fits in memory.

    Return None if no layout fits on up to `most` devices.

    Args:
        offloaded: True also tries states in the host's memory.
    """
    tried = OFFLOADS if offloaded else OFFLOADS[:1]
    count = 1
    while count <= most:
        if any(_over(work, block, micro, count, device)[1] == 0 for block, micro in legal(work, count, tried)):
            return count
        count *= 2
    return None


def legal(
    work: TrainingWork, ranks: int, offloads: Sequence[Literal["none", "optimizer", "parameters"]] = OFFLOADS
) -> Iterator[tuple[Parallel, int]]:
    """Yield the legal layouts for a number of ranks, each with a micro batch in sequences (1 for private steps)."""
    micros = MICRO_BATCHES[:1] if work.private else MICRO_BATCHES
    own = work.parallel.model_dump() | {"loss_scale": work.parallel.loss_scale}
    every = sorted({0, 1, work.parallel.activation_checkpointing})
    compiled = (True, False) if work.parallel.compile else (False,)
    for tensor, pipeline, sequence in _degrees(ranks):
        data = ranks // (tensor * pipeline * sequence)
        fitting = [micro for micro in micros if work.global_batch_sequences % (data * micro) == 0]
        degrees = {"tensor": tensor, "pipeline": pipeline, "sequence": sequence}
        experts = _divisors(math.gcd(data, work.model.experts.count)) if work.model.experts else [1]
        for stage, offload, recomputed, expert in product(range(4), offloads, every, experts) if fitting else ():
            tried = own | degrees | {"zero_stage": stage, "offload": offload, "activation_checkpointing": recomputed}
            tried["expert"] = expert
            blocks = (Parallel.model_construct(**{**tried, "compile": one}) for one in compiled)
            block = next((one for one in blocks if not _refused(work, one, ranks)), None)
            if block is not None:
                yield from ((block, micro) for micro in fitting)


def _refused(work: TrainingWork, block: Parallel, ranks: int) -> bool:
    """Return True if a recipe with this layout would be refused."""
    division = problems(
        block, work.model, ranks=ranks, sequence_tokens=work.sequence_tokens, precision=work.precision
    )
    return (
        any(True for _ in division)
        or any(True for _ in problems_with_division(work.optimizer, block, work.model, work.precision))
        or bool(not_with(block, float8=work.float8, undivided=work.undivided))
    )


def _degrees(ranks: int) -> Iterator[tuple[int, int, int]]:
    for tensor in _divisors(ranks):
        for pipeline in _divisors(ranks // tensor):
            for sequence in _divisors(ranks // tensor // pipeline):
                yield tensor, pipeline, sequence


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _over(work: TrainingWork, block: Parallel, micro: int, ranks: int, device: Device) -> tuple[memory.Memory, int]:
    """Return the memory of the device that needs the most. The second value is the number of bytes by which it and its
    host exceed the planned memory."""
    used = memory.per_device(
        work.model,
        block,
        vocab_size=work.vocab_size,
        sequence_tokens=work.sequence_tokens,
        micro_batch=micro,
        accumulation=work.global_batch_sequences // (block.data_ranks(ranks) * micro),
        ranks=ranks,
        precision=work.precision,
        optimizer=work.optimizer,
        private=work.private,
    )
    room = (used.total, device.memory_bytes), (used.host, device.host_memory_bytes)
    return used, sum(max(0, needed - int(USABLE * there)) for needed, there in room)


class _Counted:
    """Cache of FLOPs per step by `activation_checkpointing`; the FLOPs are the same for every layout."""

    def __init__(self, work: TrainingWork) -> None:
        self._work, self._found = work, dict[int, float]()

    def step(self, every: int) -> float:
        if every not in self._found:
            work = self._work
            keys = architectures.layer_keys(work.model, [work.sequence_tokens])
            a_token = architectures.flops_hardware(work.model, work.vocab_size, keys, every=every)
            self._found[every] = work.global_batch_sequences * work.sequence_tokens * a_token
        return self._found[every]


def _candidate(
    work: TrainingWork, block: Parallel, micro: int, ranks: int, device: Device, efficiency: float, counted: _Counted
) -> RankedDivision:
    data, every = block.data_ranks(ranks), block.activation_checkpointing
    accumulation = work.global_batch_sequences // (data * micro)
    used, over = _over(work, block, micro, ranks, device)
    compute = counted.step(every) / (ranks * device.bf16_flops * efficiency)
    return RankedDivision(
        data=data,
        tensor=block.tensor,
        pipeline=block.pipeline,
        sequence=block.sequence,
        zero_stage=block.zero_stage,
        activation_checkpointing=every,
        offload=block.offload,
        compile=block.compile,
        micro_batch=micro,
        accumulation=accumulation,
        memory_bytes=used.total,
        over_bytes=over,
        host_bytes=used.host,
        compute_s=compute,
        bubble_s=compute * (block.pipeline - 1) / accumulation,
        exposed_s=_exposed(work, block, micro, ranks, accumulation, compute, device),
        expert=block.expert,
    )


def traffic(work: TrainingWork, block: Parallel, micro: int, ranks: int, accumulation: int) -> dict[str, float]:
    """Return the bytes that a device sends per step, by communication axis. Bytes to and from the host count in both
    directions."""
    model, width = work.model, 4 if work.precision == "fp32" else 2
    layers = -(-model.layers // block.pipeline)
    stream = micro * work.sequence_tokens // block.sequence * model.dim * width
    passes = 2 + (1 / block.activation_checkpointing if block.activation_checkpointing else 0)
    heads, kv_heads = model.heads // block.tensor, model.kv_heads // block.tensor
    times = repeats(heads, kv_heads, block.sequence) if block.sequence > 1 else 1
    tokens = micro * work.sequence_tokens // block.sequence
    exchanged = tokens * (2 * heads + 2 * kv_heads * times) * model.head_width * width
    own = memory.parameters_of_rank(model, work.vocab_size, block)
    sent = 4 if communication_dtype(block) == "fp32" else 2
    times_reduced = accumulation if block.zero_stage > 1 else 1
    reduced = (1 if block.zero_stage == 3 else 2) * sent * times_reduced
    gathers = {0: 0, 1: 1, 2: 1, 3: passes * accumulation}[block.zero_stage]
    ring = {name: (n - 1) / n for name, n in _sizes(block, ranks).items()}
    experts = memory.experts_of(model) / (block.expert * block.pipeline) if block.expert > 1 else 0
    shared = ring["data"] * (own - experts) + ring["replicas"] * experts
    return {
        "tensor": ring["tensor"] * 2 * 2 * passes * layers * stream * accumulation,
        "sequence": ring["sequence"] * passes * layers * exchanged * accumulation,
        "pipeline": 2.0 * stream * accumulation if block.pipeline > 1 else 0.0,
        **({"experts": _routed(model, block, tokens * accumulation * passes) * width} if experts else {}),
        "gradients": shared * reduced,
        "parameters": shared * gathers * width,
        "host": _to_host(block, own / _sizes(block, ranks)["data"], width, passes, accumulation),
    }


def _routed(model: Model, block: Parallel, tokens: float) -> float:
    """Return how many numbers a rank sends to the experts of other ranks and back for `tokens` tokens."""
    assert model.experts is not None
    layers, sent = model.experts.sparse_layers(model.layers) / block.pipeline, (block.expert - 1) / block.expert
    return 2 * sent * layers * tokens * model.experts.active * model.dim


def _to_host(block: Parallel, share: float, width: int, passes: float, accumulation: int) -> float:
    """Return the bytes moved between a device and its host, and within host memory; `share` is the number of
    parameters on this rank."""
    if block.offload == "none":
        return 0.0
    gradients = 4 * (2 * accumulation - 1 if block.zero_stage == 3 else 1)
    gathered = passes * accumulation * width if block.offload == "parameters" else width
    return share * (gradients + UPDATE_BYTES + gathered)


def _sizes(block: Parallel, ranks: int) -> dict[str, int]:
    """Return the number of ranks in a group of each communication axis. All ranks with the same parameters exchange
    gradients; `replicas` have the same experts."""
    data = ranks // (block.tensor * block.pipeline)
    return {
        "tensor": block.tensor,
        "sequence": block.sequence,
        "data": data,
        "replicas": data // block.expert,
    }


def _exposed(
    work: TrainingWork, block: Parallel, micro: int, ranks: int, accumulation: int, compute: float, device: Device
) -> dict[str, float]:
    """Return seconds of communication that computation does not hide, by axis."""
    reach = {"tensor": block.tensor, "sequence": block.tensor * block.sequence}
    reach |= {"pipeline": block.model_ranks, "gradients": ranks, "parameters": ranks}
    reach |= {"experts": block.expert * block.model_ranks} if block.expert > 1 else {}
    sent = traffic(work, block, micro, ranks, accumulation)
    seconds = {
        name: sent[name] / (device.within_bytes_per_s if size <= device.per_machine else device.between_bytes_per_s)
        for name, size in reach.items()
    } | {"host": sent["host"] / device.host_bytes_per_s}
    if overlaps(block, gpu=True) and not work.private:  # a private sum is available only after all sequences
        backward = compute * 2 / 3 / (accumulation if block.zero_stage == 1 else 1)
        seconds["gradients"] = max(0.0, seconds["gradients"] - backward)
        if block.zero_stage == 3:  # the rest of the pass after the gradients
            seconds["parameters"] = max(0.0, seconds["parameters"] - compute / 3)
    return seconds
