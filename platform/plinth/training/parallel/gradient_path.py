"""The way of a gradient from the backward pass to the optimizer, by ZeRO stage and precision; torch-free.

    stage   accumulated                    reduced over replicas                     while backward goes on
    0       whole, FP32                    once a step, all-reduce                   no
    1       whole, FP32                    once a step, all-reduce in buckets        yes, in the last micro batch
    2       this rank's part, FP32         each micro batch, all-reduce in buckets   yes
    3       this rank's part, FP32         each micro batch, reduce-scatter          yes

Gradients are accumulated in FP32 in every stage and precision: with eight bits of mantissa, a sum of 256 equal BF16
numbers stops growing. They travel in FP32 too unless `communication_dtype` names a cheaper dtype. Stage 1 sends the
fewest bytes with gradient accumulation, 2 and 3 hold the fewest.

Does not belong here: bytes (plinth.operation.memory), or how DeepSpeed is brought to it (training.engine).
"""

from __future__ import annotations

from plinth.records import Frozen
from plinth.training.parameters.parallel import Parallel


class GradientPath(Frozen):
    """How gradients are accumulated and reduced; `plinth run plan` prints it."""

    accumulation_dtype: str
    communication_dtype: str
    reduced: str  # when
    overlapped: bool  # with the backward pass

    def text(self) -> str:
        """One line for people."""
        dtypes = f"accumulated in {self.accumulation_dtype}, sent in {self.communication_dtype}"
        when = "while the backward pass goes on" if self.overlapped else "after the backward pass"
        return f"{dtypes}, reduced {self.reduced}, {when}"


def gradient_path(parallel: Parallel, *, gpu: bool) -> GradientPath:
    """The path of a block that can run, on a GPU or a CPU."""
    return GradientPath(
        accumulation_dtype="fp32",
        communication_dtype=communication_dtype(parallel),
        reduced="once a step" if parallel.zero_stage < 2 else "each micro batch",
        overlapped=overlaps(parallel, gpu=gpu),
    )


def communication_dtype(parallel: Parallel) -> str:
    """Of gradients on the wire."""
    return "fp32" if parallel.communication_dtype == "auto" else parallel.communication_dtype


def overlaps(parallel: Parallel, *, gpu: bool) -> bool:
    """Whether gradients are reduced while the backward pass goes on; by default where that helps."""
    if parallel.overlap_communication is not None:
        return parallel.overlap_communication
    return gpu and can_overlap(parallel) and parallel.offload == "none"


def can_overlap(parallel: Parallel) -> bool:
    """ZeRO-0 reduces with one call at the end, and so does a pipeline, whose stages still add to gradients."""
    return parallel.zero_stage > 0 and parallel.pipeline == 1
