"""Every division of a model over so many devices that can run, quickest first, each with its reason.

Legal is what `plinth.training.parallel.parameters.problems` lets pass; memory is that of `memory`; time is

    step = compute / efficiency + bubble + exposed communication

    bubble    (p - 1) / m of the computing time, m micro batches (Narayanan et al., arXiv:2104.04473, section 2.2)
    tensor    four sums of activations a block and micro batch, two more where it is computed again; never hidden
    sequence  two exchanges of queries, keys, values and outputs a block and micro batch (a third, recomputed)
    pipeline  activations forward and gradients back, a micro batch
    data      gradients in FP32: an all-reduce, in ZeRO-3 a reduce-scatter; each micro batch from ZeRO-2 on; parameters
              gathered once a step (ZeRO-1, ZeRO-2) or twice a micro batch (ZeRO-3). Hidden behind the backward pass
              where `gradient_path.overlaps`, ZeRO-3's gathers behind both

A ring of n sends 2 (n - 1) / n of an all-reduce's bytes, (n - 1) / n of the others', at the pace of its slowest link:
groups that fit into a machine by `parallel.topology`'s numbering use the links within, others those between. Latency,
and the optimizer's own time, are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from plinth.launch.devices import USABLE, Device
from plinth.model import flops
from plinth.model.parameters import Model, repeats
from plinth.operation.planning import activations, memory
from plinth.training.parallel.gradient_path import communication_dtype, overlaps
from plinth.training.parallel.parameters import Parallel, problems

#: Share of a device's peak that its matrix products reach, without bubble and communication: least, most. Published
#: runs reach 38% to 48% of it with both (docs/planning.md).
EFFICIENCY = (0.4, 0.6)

#: Sequences of a micro batch that are tried.
MICRO_BATCHES = (1, 2, 4, 8)


class TrainingWork(NamedTuple):
    """What is trained."""

    model: Model
    vocab_size: int
    sequence_tokens: int
    global_batch_sequences: int
    precision: memory.Precision = "bf16"


class RankedDivision(NamedTuple):
    """One division. Seconds are of a step at the middle of the efficiencies."""

    data: int
    tensor: int
    pipeline: int
    sequence: int
    zero_stage: int
    recomputed: bool
    micro_batch: int
    accumulation: int
    memory_bytes: int
    over_bytes: int  # above what is planned with; 0: it fits
    compute_s: float
    bubble_s: float
    exposed_s: dict[str, float]  # by axis

    @property
    def step_s(self) -> float:
        return self.compute_s + self.bubble_s + sum(self.exposed_s.values())

    @property
    def division(self) -> str:
        """Degrees, stage, micro batch and recomputation in words."""
        kept = ", recomputed" if self.recomputed else ""
        return (
            f"data {self.data} x tensor {self.tensor} x pipeline {self.pipeline} x sequence {self.sequence}, "
            f"ZeRO {self.zero_stage}, micro batch {self.micro_batch}{kept}"
        )

    @property
    def reason(self) -> str:
        """What holds it back."""
        if self.over_bytes:
            return f"does not fit: {self.over_bytes / 1e9:,.1f} GB too much"
        shares = {"bubble": self.bubble_s, **self.exposed_s}
        shown = (f"{name} {seconds / self.step_s:.0%}" for name, seconds in shares.items() if seconds > 0)
        return ", ".join(shown) or "computing alone"


def rank(work: TrainingWork, ranks: int, device: Device) -> list[RankedDivision]:
    """All legal divisions: those that fit by time of a step, then the others by what they lack."""
    middle = sum(EFFICIENCY) / 2
    counted = _Counted(work)
    found = [
        _candidate(work, block, micro, ranks, device, middle, counted) for block, micro in legal(work, ranks)
    ]
    return sorted(found, key=lambda one: (one.over_bytes, one.step_s, one.memory_bytes))


def of_block(
    work: TrainingWork, block: Parallel, micro: int, ranks: int, device: Device, efficiency: float
) -> RankedDivision:
    """One division that can run, at an efficiency."""
    return _candidate(work, block, micro, ranks, device, efficiency, _Counted(work))


def minimum_devices(work: TrainingWork, device: Device, most: int = 1024) -> int | None:
    """The fewest devices, of powers of two, on which some division fits; None: of none up to `most`."""
    count = 1
    while count <= most:
        if any(_over(work, block, micro, count, device)[1] == 0 for block, micro in legal(work, count)):
            return count
        count *= 2
    return None


def legal(work: TrainingWork, ranks: int) -> Iterator[tuple[Parallel, int]]:
    """Blocks that can run on so many ranks, with the sequences of a micro batch."""
    model, sequences = work.model, work.global_batch_sequences
    for tensor in _divisors(ranks):
        for pipeline in _divisors(ranks // tensor):
            for sequence in _divisors(ranks // tensor // pipeline):
                for stage in range(4):
                    for every in (0, 1):
                        block = Parallel.model_construct(
                            tensor=tensor, pipeline=pipeline, sequence=sequence,
                            zero_stage=stage, activation_checkpointing=every,  # type: ignore[arg-type]
                        )  # fmt: skip
                        refused = problems(
                            block, model, ranks=ranks, sequence_tokens=work.sequence_tokens, precision=work.precision
                        )
                        if any(refused):
                            break
                        data = block.data_ranks(ranks)
                        yield from ((block, micro) for micro in MICRO_BATCHES if sequences % (data * micro) == 0)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _over(work: TrainingWork, block: Parallel, micro: int, ranks: int, device: Device) -> tuple[int, int]:
    """Bytes on the device that needs most, and by how much they exceed what is planned with."""
    used = memory.per_device(
        work.model,
        block,
        vocab_size=work.vocab_size,
        sequence_tokens=work.sequence_tokens,
        micro_batch=micro,
        accumulation=work.global_batch_sequences // (block.data_ranks(ranks) * micro),
        ranks=ranks,
        precision=work.precision,
    ).total
    return used, max(0, used - int(USABLE * device.memory_bytes))


class _Counted:
    """FLOPs of a step without and with recomputation: the same for every division."""

    def __init__(self, work: TrainingWork) -> None:
        keys = flops.keys_per_token([work.sequence_tokens])
        tokens = work.global_batch_sequences * work.sequence_tokens
        self.step = [
            tokens * flops.flops_hardware(work.model, work.vocab_size, keys, recomputed=blocks)
            for blocks in (0, work.model.layers)
        ]


def _candidate(
    work: TrainingWork, block: Parallel, micro: int, ranks: int, device: Device, efficiency: float, counted: _Counted
) -> RankedDivision:
    data, recomputed = block.data_ranks(ranks), activations.recomputed_blocks(work.model, block) > 0
    accumulation = work.global_batch_sequences // (data * micro)
    used, over = _over(work, block, micro, ranks, device)
    compute = counted.step[recomputed] / (ranks * device.bf16_flops * efficiency)
    return RankedDivision(
        data=data,
        tensor=block.tensor,
        pipeline=block.pipeline,
        sequence=block.sequence,
        zero_stage=block.zero_stage,
        recomputed=recomputed,
        micro_batch=micro,
        accumulation=accumulation,
        memory_bytes=used,
        over_bytes=over,
        compute_s=compute,
        bubble_s=compute * (block.pipeline - 1) / accumulation,
        exposed_s=_exposed(work, block, micro, ranks, accumulation, compute, device),
    )


def traffic(work: TrainingWork, block: Parallel, micro: int, ranks: int, accumulation: int) -> dict[str, float]:
    """Bytes that a device sends in a step, by the axis of its group."""
    model, width = work.model, 4 if work.precision == "fp32" else 2
    layers = -(-model.layers // block.pipeline)
    stream = micro * work.sequence_tokens // block.sequence * model.dim * width
    passes = 3 if block.activation_checkpointing else 2
    heads, kv_heads = model.heads // block.tensor, model.kv_heads // block.tensor
    times = repeats(heads, kv_heads, block.sequence) if block.sequence > 1 else 1
    tokens = micro * work.sequence_tokens // block.sequence
    exchanged = tokens * (2 * heads + 2 * kv_heads * times) * model.head_width * width
    own = memory.parameters_of_rank(model, work.vocab_size, block)
    sent = 4 if communication_dtype(block) == "fp32" else 2
    times_reduced = accumulation if block.zero_stage > 1 else 1
    reduced = (1 if block.zero_stage == 3 else 2) * sent * own * times_reduced
    gathers = {0: 0, 1: 1, 2: 1, 3: passes * accumulation}[block.zero_stage]
    ring = {name: (n - 1) / n for name, n in _sizes(block, ranks).items()}
    return {
        "tensor": ring["tensor"] * 2 * 2 * passes * layers * stream * accumulation,
        "sequence": ring["sequence"] * passes * layers * exchanged * accumulation,
        "pipeline": 2.0 * stream * accumulation if block.pipeline > 1 else 0.0,
        "gradients": ring["data"] * reduced,
        "parameters": ring["data"] * gathers * width * own,
    }


def _sizes(block: Parallel, ranks: int) -> dict[str, int]:
    """Ranks of a group; gradients are exchanged by all that hold the same parameters."""
    return {
        "tensor": block.tensor,
        "sequence": block.sequence,
        "data": ranks // (block.tensor * block.pipeline),
    }


def _exposed(
    work: TrainingWork, block: Parallel, micro: int, ranks: int, accumulation: int, compute: float, device: Device
) -> dict[str, float]:
    """Seconds of communication that computing does not hide, by axis."""
    reach = {"tensor": block.tensor, "sequence": block.tensor * block.sequence}
    reach |= {"pipeline": block.model_ranks, "gradients": ranks, "parameters": ranks}
    seconds = {
        name: sent
        / (device.within_bytes_per_s if reach[name] <= device.per_machine else device.between_bytes_per_s)
        for name, sent in traffic(work, block, micro, ranks, accumulation).items()
    }
    if overlaps(block, gpu=True):
        backward = compute * 2 / 3 / (accumulation if block.zero_stage == 1 else 1)
        seconds["gradients"] = max(0.0, seconds["gradients"] - backward)
        if block.zero_stage == 3:  # what is left of the pass, once gradients have had theirs
            seconds["parameters"] = max(0.0, seconds["parameters"] - compute / 3)
    return seconds
