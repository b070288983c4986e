"""Estimates for the run that a recipe describes, with every assumption in words.

The speed is stated by the user, or taken from similar runs of the workspace. For such a run, the planner divides its
own FLOP count by the time of whole steps (computation, communication, input and host, but no saves). The resulting
FLOP/s and the FLOPs of the planned run give tokens per second. For the same model, parallel layout and batch, the
result is the measured speed.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from plinth.launch import devices
from plinth.launch.parameters import Launch
from plinth.model import architectures
from plinth.operation import forecast, memory, ranking
from plinth.operation.forecast import RecordedRun
from plinth.operation.spending import CPU
from plinth.recipe.recipe import Recipe
from plinth.records import Frozen
from plinth.tokens.order.steps import schedule
from plinth.training import hooks
from plinth.training.attempts import hardware
from plinth.training.parallel.topology import GradientPath, gradient_path
from plinth.training.parameters.parallel import Parallel, not_with, problems
from plinth.training.parameters.run import Training
from plinth.training.telemetry import machine_speed


class RecordedSpeed(NamedTuple):
    """Tokens per second over all ranks, and a description of the runs that the speed is derived from."""

    tokens_per_second: float
    source: str


def speed(
    runs: Iterable[RecordedRun], work: ranking.TrainingWork, block: Parallel, micro: int, launch: Launch,
    device: str | None = None,
) -> RecordedSpeed | None:  # fmt: skip
    """Return the median speed of similar runs on the same kind of device.

    If there are such runs from this machine, only they are used.

    Args:
        micro: number of sequences in a rank's micro batch.
        launch: launch settings. If `device` is None, a local run uses this machine's device, and any other run uses the
            device of the newest recorded run.
        device: name of the device, if the user stated it.

    Returns:
        None if no such run is recorded.
    """
    timed = [run for run in runs if run.whole_flops_per_s is not None]
    name, machine = (device, "") if device else _place(timed, launch)
    found, words = forecast.chosen(timed, name, machine, work)
    if not found:
        return None
    together = launch.ranks_per_node if name == CPU else 1  # what a run on processors was measured as
    step = ranking.rank_flops(work, block, micro, launch.ranks) * together
    tokens = work.global_batch_sequences * work.sequence_tokens
    rates = [tokens * run.whole_flops_per_s / step for run in found if run.whole_flops_per_s is not None]
    spread = f", {min(rates):,.0f} to {max(rates):,.0f} tokens/s" if len(rates) > 1 else ""
    return RecordedSpeed(statistics.median(rates), words + spread)


def _place(runs: list[RecordedRun], launch: Launch) -> tuple[str, str]:
    """Return the device and the machine that a run would train on, or empty strings if unknown."""
    if launch.kind != "local":
        return (runs[-1].device if runs else ""), ""
    gpus = hardware()[3]
    return (devices.called(gpus[0]) or "") if gpus else CPU, machine_speed.this_machine()


#: The assumption of a plan without a wall clock.
NO_SPEED = "no wall-clock time, because no speed was stated"


class TrainingPlan(Frozen):
    """Estimated cost of a training run. FLOPs cover the whole run; `wall_clock_s` is None if no speed is known."""

    recipe: str
    preset: str | None
    parameters: int
    active_parameters: int  # that one token uses: all without experts
    parameters_without_embeddings: int
    parameters_by_place: architectures.ParameterCounts
    vocab_size: int
    sequence_tokens: int
    global_batch_tokens: int
    steps: int
    tokens: int
    unused_tokens: int
    tokens_per_parameter: float
    flops_per_token_6n: int
    flops_per_token_exact: int
    flops_6nd: int
    flops_exact: int
    flops_causal: float  # what the result needs: the keys that a token sees
    flops_hardware: float  # what GPUs do: fused attention's and recomputed blocks' second time included
    tokens_per_second: float | None
    speed_source: str | None  # `stated`, or of which runs
    wall_clock_s: float | None
    ranks: int
    zero_stage: int
    precision: memory.Precision
    division: str
    gradients: GradientPath  # on GPUs
    memory_per_device: memory.Memory
    memory_by_zero_stage: dict[int, int]  # of the stages that go with the rest of the block
    device: str | None
    device_bytes: int | None
    fits: bool | None  # None when no device was stated
    assumptions: tuple[str, ...]

    def at(self, speed: RecordedSpeed) -> TrainingPlan:
        """Return a copy of the plan with the speed of recorded runs, which is also added to the plan's assumptions."""
        rate, others = speed.tokens_per_second, tuple(line for line in self.assumptions if line != NO_SPEED)
        return self.model_copy(
            update={
                "tokens_per_second": rate,
                "speed_source": speed.source,
                "wall_clock_s": self.tokens / rate,
                "assumptions": (*others, _at_speed(rate, speed.source)),
            }
        )


def plan(
    recipe: Recipe,
    *,
    tokens_per_second: float | None = None,
    vocab_size: int | None = None,
    precision: Literal["fp32", "bf16"] | None = None,
    device: str | None = None,
    table: Mapping[str, devices.Device] = devices.DEVICES,
    document_tokens: int | None = None,
) -> TrainingPlan:
    """Estimate the cost of a recipe's run.

    Args:
        tokens_per_second: speed of all ranks together, measured or assumed; it determines the wall clock.
        vocab_size: vocabulary size of the trained tokenizer; if None, the recipe's vocabulary size.
        precision: precision of the machine, if the recipe has `auto` (FP32 if None).
        device: name in `table`, to check whether the run fits in memory.
        document_tokens: mean length of documents; no document is cut at the end of a row. If None, each row is one
            document.
    """
    training, mixture = recipe.training, recipe.required_mixture()
    vocabulary = vocab_size or recipe.tokenizer.vocab_size
    kind = training.precision if training.precision != "auto" else precision or "fp32"
    counted = architectures.parameters(training.model, vocabulary)
    sequences = mixture.total_tokens // mixture.sequence_tokens
    changes = (training.batch_schedule, training.length_schedule, training.amendments)
    taken = schedule(sequences, mixture.sequence_tokens, training.global_batch_sequences, *changes)
    steps, tokens = taken.total, taken.used * mixture.sequence_tokens
    batch_tokens = taken.batches[-1] * mixture.sequence_tokens
    rule = architectures.flops_6n(training.model, vocabulary)
    exact = architectures.flops_exact(training.model, vocabulary, mixture.sequence_tokens)
    by_stage = _memory_by_stage(recipe, vocabulary, kind)
    needed = by_stage[training.parallel.zero_stage]
    name, found = devices.find(device, table) if device else (None, None)
    causal, hardware = _attention_flops(training, vocabulary, mixture.sequence_tokens, document_tokens)
    return TrainingPlan(
        recipe=recipe.name,
        preset=training.model.preset,
        parameters=counted.total,
        active_parameters=counted.active,
        parameters_by_place=counted,
        parameters_without_embeddings=counted.total - counted.embedding - counted.output,
        vocab_size=vocabulary,
        sequence_tokens=mixture.sequence_tokens,
        global_batch_tokens=batch_tokens,
        steps=steps,
        tokens=tokens,
        unused_tokens=mixture.total_tokens - tokens,
        tokens_per_parameter=tokens / counted.active,
        flops_per_token_6n=rule,
        flops_per_token_exact=exact,
        flops_6nd=rule * tokens,
        flops_exact=exact * tokens,
        flops_causal=causal * tokens,
        flops_hardware=hardware * tokens,
        tokens_per_second=tokens_per_second,
        speed_source=None if tokens_per_second is None else "stated",
        wall_clock_s=tokens / tokens_per_second if tokens_per_second else None,
        ranks=training.launch.ranks,
        zero_stage=training.parallel.zero_stage,
        precision=kind,
        division=_division(training.parallel, training.launch.ranks),
        gradients=gradient_path(training.parallel, gpu=True),
        memory_per_device=needed,
        memory_by_zero_stage={stage: used.total for stage, used in by_stage.items()},
        device=name,
        device_bytes=None if found is None else found.memory_bytes,
        fits=None if found is None else needed.total <= devices.USABLE * found.memory_bytes,
        assumptions=_assumptions(recipe, vocab_size, precision, tokens_per_second, document_tokens),
    )


def _attention_flops(
    training: Training, vocab_size: int, sequence_tokens: int, document_tokens: int | None
) -> tuple[float, float]:
    """Return causal FLOPs and hardware FLOPs of attention per token, on GPUs."""
    model, block = training.model, training.parallel
    longest = document_tokens if model.document_mask and document_tokens else sequence_tokens
    keys = architectures.layer_keys(model, [min(longest, sequence_tokens)])
    computed = keys
    if block.attention == "sdpa":
        masked = [model.document_mask or model.sinks or window is not None for window in model.windows]
        computed = [sequence_tokens if dense else own for dense, own in zip(masked, keys, strict=True)]
    done = architectures.flops_hardware(model, vocab_size, computed, every=block.activation_checkpointing)
    return architectures.flops_causal(model, vocab_size, keys), done


def _memory_by_stage(recipe: Recipe, vocab_size: int, precision: memory.Precision) -> dict[int, memory.Memory]:
    """Return the memory per device by ZeRO stage, for the stages that the other parallel settings allow."""
    training, mixture = recipe.training, recipe.required_mixture()
    ranks, micro = training.launch.ranks, training.micro_batch_sequences
    copies = 0
    if training.recovery.enabled:
        copies = memory.COPIES_OF_NODES if training.launch.nodes > 1 else memory.COPIES
    found = {}
    for stage in range(4):
        block = training.parallel.model_copy(update={"zero_stage": stage})
        refused = problems(
            block, training.model, ranks=ranks, sequence_tokens=mixture.sequence_tokens, precision=precision
        )
        if any(refused) or not_with(block, float8=training.float8 != "none", undivided=hooks.undivided(training)):
            continue
        found[stage] = memory.per_device(
            training.model,
            block,
            vocab_size=vocab_size,
            sequence_tokens=mixture.sequence_tokens,
            micro_batch=micro,
            accumulation=training.global_batch_sequences // (block.data_ranks(ranks) * micro),
            ranks=ranks,
            precision=precision,
            optimizer=training.optimizer,
            private=hooks.one_by_one(training),
            copies=copies,
        )
    return found


def _division(parallel: Parallel, ranks: int) -> str:
    """Describe the parallel layout in words, by its degrees above 1."""
    degrees = {"data": parallel.data_ranks(ranks)}
    degrees |= {name: getattr(parallel, name) for name in ("pipeline", "sequence", "tensor")}
    found = " x ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1) or "one rank"
    return found + (f", experts over {parallel.expert} data ranks" if parallel.expert > 1 else "")


def _state(training: Training) -> str:
    """Describe the optimizer state that is kept in memory."""
    kinds = {"adamw": "Adam's state", "muon": "Muon's momentum and Adam's state"}
    found = kinds.get(training.optimizer.kind, f"the state of {training.optimizer.kind} (counted like Adam's state)")
    return found + (", the moving average of the weights" if training.optimizer.ema_decay is not None else "")


def _attention(training: Training) -> str:
    """Describe the attention implementation that the run uses."""
    path, documents = training.parallel.attention, training.model.document_mask
    dense = "sdpa with dense masks" if documents or training.model.window else "sdpa"
    dense = "sdpa with all scores in memory" if training.model.sinks else dense
    words = {"flex": "flex with block masks", "flash": "flash", "sdpa": dense}
    if path == "auto" and training.model.sinks:
        return f"flex with block masks on GPUs, otherwise {dense}"
    if path == "auto" and training.model.window:
        return "on GPUs flex with block masks in layers with a window or documents that end within rows, otherwise sdpa"
    if path == "auto":
        return "flex with block masks on GPUs if documents end within rows, otherwise sdpa" if documents else dense
    return words[path]


def _private(training: Training) -> str:
    """Describe the time cost of differentially private training."""
    alone = training.global_batch_sequences / training.parallel.data_ranks(training.launch.ranks)
    return (
        f"private: a step is on average {alone:,.4g} forward and backward passes of one sequence per rank, for any "
        "micro_batch_sequences, each followed by a gradient sum in FP32; a speed measured with larger micro batches "
        "or without privacy does not apply"
    )


def _documents(training: Training, document_tokens: int | None) -> str:
    """Describe the assumed length of documents."""
    if not training.model.document_mask:
        return "in the row before it"
    if document_tokens is None:
        return "with each row as one document (state the mean length with --document-tokens)"
    return f"with documents of {document_tokens:,} tokens each (documents of different lengths need more)"


def _assumptions(
    recipe: Recipe,
    vocab_size: int | None,
    precision: str | None,
    tokens_per_second: float | None,
    document_tokens: int | None,
) -> tuple[str, ...]:
    lines = [
        "6 N D counts all parameters that a token uses and embeddings; the backward pass costs twice the forward pass",
        "FLOPs by PaLM's formula include attention over the whole square; causal FLOPs include the keys that a token "
        "sees, "
        + _documents(recipe.training, document_tokens)
        + "; hardware FLOPs also include recomputation, in fused attention and in blocks",
        f"memory is parameters, gradients, {_state(recipe.training)}, activations, logits and communication buckets; "
        "10% of a device is left for the runtime and fragmentation",
        "attention scores are recomputed; other activations are kept, except in blocks that the recipe recomputes",
        "if the last step has no full batch, it is not run",
    ]
    lines.append(f"attention: {_attention(recipe.training)}")
    if recipe.training.fp32_matmul == "tf32":
        lines.append("FP32 matrix products are rounded to TF32; on a device without TF32 the run fails")
    if recipe.training.float8 != "none":
        lines.append("FP8 layers are counted like BF16 layers; a stated peak or speed must be for BF16")
    if hooks.one_by_one(recipe.training):
        lines.append(_private(recipe.training))
    if vocab_size is None:
        lines.append("the trained tokenizer has the recipe's vocabulary size")
    if recipe.training.precision == "auto":
        counted = precision or "fp32"
        lines.append(f"precision auto is estimated as {counted}; a device with BF16 trains in BF16 (--precision bf16)")
    lines.append(NO_SPEED if tokens_per_second is None else _at_speed(tokens_per_second, "stated"))
    return tuple(lines)


def _at_speed(tokens_per_second: float, source: str) -> str:
    return f"{tokens_per_second:,.0f} tokens/s over all ranks ({source}), without start-up, checkpoints and restarts"
