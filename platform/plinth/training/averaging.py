"""Averages of weights, saved as a checkpoint: the mean of several checkpoints of a run, or the EMA in one checkpoint.

    step 900 ──┐  master weights (or `ema`), tensor by tensor
    step 950 ──┼──► sum of w_i x_i / sum of w_i in FP64 ──► model.safetensors in FP32, config.json, tokenizer
    step 1000 ─┘

The result is a manifest of the asset `checkpoint` in the workspace, named by its digest. The average can be evaluated,
sampled from and used as initial weights. With a signed attestation of the mean (mean_record) it can be released. Its
inputs are the manifests of all parent checkpoints, with their steps and the run. Training cannot resume from an
average. If the run has finished, the average refers to the evidence that a resumed run equals the uninterrupted one.

Every byte of a parent checkpoint is compared with its signed record before use. Two tensors are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plinth.compute import context
from plinth.compute.context import Context
from plinth.errors import CheckpointError
from plinth.model.division import file_tensors
from plinth.model.experts import BIAS
from plinth.model.hugging_face import CONFIG, WEIGHTS, config_text, hf_config, hf_name
from plinth.records import Blob, Manifest, Part, Step
from plinth.storage import tensor_file
from plinth.training.checkpoint import checkpoint, mean_record
from plinth.training.checkpoint.mean_record import AVERAGE, PARENT
from plinth.training.checkpoint.sharded_state import MASTER, ShardedState
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.engine.weights import EMA
from plinth.training.manifests import committed_manifest
from plinth.training.parameters.run import Average
from plinth.training.parameters.trainer import require_own_loop
from plinth.training.stopping import last_step

VERSION = "1"


def average(ctx: Context, config: RunConfig, steps: Sequence[int], weights: Sequence[float], *, ema: bool) -> Manifest:
    """Average committed checkpoints, save the result, sign its attestation, and return its manifest.

    Args:
        steps: steps of the checkpoints to average, without duplicates.
        weights: positive averaging weight of each step; they are normalized by their sum.
        ema: True to average the EMA weights in the checkpoints instead of the weights.

    Raises:
        CheckpointError: a step is a duplicate, the number of weights differs from the number of steps, or a checkpoint
            fails verification or has no EMA.
        MissingError: the run has no such checkpoint.
        SignatureError: this machine has no trainer key.
        TrainingError: an external trainer trained the run.
    """
    require_own_loop(config.trainer, "an average of checkpoints")
    _require(steps, weights)
    if ema and config.optimizer.ema_decay is None:
        raise CheckpointError(
            f"run {config.run_id} has no weight average (EMA)",
            expected="a run whose recipe sets training.optimizer.ema_decay",
            remedy="average the weights without --ema",
        )
    parents = {f"{PARENT}{step}": committed_manifest(ctx, config, step) for step in steps}
    for parent in parents.values():
        ctx.refs.save(parent)
    final = _final(ctx, config, parents)
    with ctx.store.staging() as path, ExitStack() as stack:
        folders = [checkpoint.path(config.directory, step) / "engine" for step in steps]
        states = [ShardedState(stack, folder) for folder in folders]
        _write(path, states, weights, EMA if ema else MASTER)
        blob = ctx.store.put_file(path)
    model = config.model_at(max(steps))
    described = hf_config(model, config.vocab_size, config.sequence_tokens, "float32", config.end_of_text)
    files = [_part(WEIGHTS, blob), _part(CONFIG, ctx.store.put_bytes(config_text(described).encode()))]
    stats: dict[str, Any] = {"run_id": config.run_id, "step": max(steps), "tokens": config.tokens_through(max(steps))}
    if final is not None:
        files += final.named("resume.json")
        stats["resume"] = {name: final.stats[name] for name in ("step", "parameters_sha256")}
    run = (final or parents[f"{PARENT}{max(steps)}"]).inputs["run"]
    made = context.manifest(
        "checkpoint",
        Step(name=AVERAGE, version=VERSION, params=_params(steps, weights, ema=ema)),
        {"run": run, "tokenizer": config.tokenizer, **parents},
        [*files, *ctx.refs.load(config.tokenizer).named("tokenizer.json")],
        stats,
    )
    ctx.refs.save(made)
    mean_record.state(RunDirectory(ctx.workspace.runs / config.run_id), made)
    return made


def asked(ctx: Context, config: RunConfig, params: Average) -> Manifest:
    """Average the checkpoints of a finished run as its recipe requests, and return the manifest of the average.

    Raises:
        CheckpointError: fewer checkpoints are committed than requested, or `average` fails.
    """
    last = last_step(config)
    known = [step for step in checkpoint.committed(config.directory) if config.saves_at(step) or step == last]
    steps = params.steps or tuple(known[-params.last :])
    if len(steps) < params.last or not set(steps) <= set(known):
        raise CheckpointError(
            f"run {config.run_id} has too few checkpoints to average",
            found=f"steps {', '.join(map(str, known)) or 'none'}",
            expected=f"steps {', '.join(map(str, params.steps))}" if params.steps else f"the last {params.last}",
            remedy="lower training.checkpoints.average, or keep more with checkpoints.keep_last or keep_every",
        )
    return average(ctx, config, steps, [1.0] * len(steps), ema=params.ema)


def _params(steps: Sequence[int], weights: Sequence[float], *, ema: bool) -> dict[str, Any]:
    return {"steps": list(steps), "weights": list(weights), "of": "ema" if ema else "weights"}


def _final(ctx: Context, config: RunConfig, parents: Mapping[str, Manifest]) -> Manifest | None:
    """Return the manifest of a finished run's last checkpoint, or None if the run has not finished. Only this
    checkpoint has the evidence that a resumed run equals the uninterrupted one."""
    last = last_step(config)
    if not config.directory.evidence.exists() or last not in checkpoint.committed(config.directory):
        return None
    return parents.get(f"{PARENT}{last}") or committed_manifest(ctx, config, last)


def _require(steps: Sequence[int], weights: Sequence[float]) -> None:
    if not steps or len(set(steps)) != len(steps):
        raise CheckpointError("duplicate or missing steps to average", found=list(steps), expected="distinct steps")
    if len(weights) != len(steps) or not all(0 < weight < float("inf") for weight in weights):
        raise CheckpointError(
            f"the mean of {len(steps)} checkpoints needs one positive weight per step",
            found=list(weights),
            expected=f"{len(steps)} numbers above 0",
        )


def _write(path: Path, states: Sequence[ShardedState], weights: Sequence[float], kind: str) -> None:
    names = sorted(states[0].names, key=hf_name)
    for state in states:
        lacking = [name for name in names if _kind(name, kind) not in state.kinds_of(name)]
        lacking = lacking or sorted(state.names ^ set(names))
        if lacking:
            raise CheckpointError(
                f"{state.folder} has no {kind} of {lacking[0]}", expected="the same parameters in every checkpoint"
            )
    whole = ((name, torch.empty(states[0].shape_of(name), device="meta")) for name in names)
    sizes = {hf_name(name): ("F32", tuple(one.shape), 4 * one.numel()) for name, one in file_tensors(whole)}

    def pieces() -> Iterator[memoryview]:
        yield memoryview(tensor_file.header(sizes, {"format": "pt"}))
        for name in names:
            yield _mean(states, weights, name, _kind(name, kind)).contiguous().view(-1).numpy().data

    tensor_file.write_chunks(path, pieces())


def _kind(name: str, kind: str) -> str:
    """Return the kind of state to average for a tensor. The balancing state of experts has no moving average."""
    return MASTER if name.endswith(BIAS) else kind


def _mean(states: Sequence[ShardedState], weights: Sequence[float], name: str, kind: str) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for state, weight in zip(states, weights, strict=True):
        weighted = state.whole(name, kind).double().mul_(weight)
        total = weighted.add_(total)  # in place: only two FP64 tensors exist
        del weighted
    return total.div_(sum(weights)).float()


def _part(name: str, blob: Blob) -> Part:
    return Part(name=name, blob=blob, rows=0)
