"""The mean of committed checkpoints of one run, or the mean of weights that one of them keeps, as a checkpoint.

    step 900 ──┐  master weights (or `ema`), tensor by tensor
    step 950 ──┼──► sum of w_i x_i / sum of w_i in FP64 ──► model.safetensors in FP32, config.json, tokenizer
    step 1000 ─┘

The result is a manifest of the asset `checkpoint` in the workspace, named by its digest: it is compared and generated
from as any other, and a run may begin from it, for which it is made again and compared. Its inputs are the manifests of
all parents, each of which names the step and the run. It is no state to resume from and no candidate for a release: no
trainer committed its files.

Every byte of the parents is compared with their signed records before it is read. Two tensors are held at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from plinth.compute import stage
from plinth.compute.context import Context
from plinth.errors import CheckpointError
from plinth.model.hugging_face import CONFIG, WEIGHTS, config_text, hf_config, hf_name
from plinth.records import Blob, Manifest, Part, Step
from plinth.storage import tensor_file
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint
from plinth.training.checkpoint.sharded_state import MASTER, ShardedState
from plinth.training.config import RunConfig
from plinth.training.engine.weight_average import EMA
from plinth.training.manifests import committed_manifest

VERSION = "1"


def average(ctx: Context, config: RunConfig, steps: Sequence[int], weights: Sequence[float], *, ema: bool) -> Manifest:
    """Average committed checkpoints, and save the result; returns its manifest.

    Args:
        steps: of the run, each once.
        weights: of each, above 0; their sum is divided by.
        ema: average the means of weights that the checkpoints keep, instead of the weights.

    Raises:
        CheckpointError: a step twice, weights that do not fit, a checkpoint that does not verify or keeps no mean.
        MissingError: the run has no such checkpoint.
    """
    _require(steps, weights)
    parents = {f"checkpoint/{step}": committed_manifest(ctx, config, step) for step in steps}
    for parent in parents.values():
        ctx.refs.save(parent)
    newest = parents[f"checkpoint/{max(steps)}"]
    with ctx.store.staging() as path, ExitStack() as stack:
        folders = [checkpoint.path(config.directory, step) / "engine" for step in steps]
        states = [ShardedState(stack, folder) for folder in folders]
        _write(path, states, weights, EMA if ema else MASTER)
        blob = ctx.store.put_file(path)
    described = hf_config(config.model, config.vocab_size, config.sequence_tokens, "float32", config.end_of_text)
    files = [_part(WEIGHTS, blob), _part(CONFIG, ctx.store.put_bytes(config_text(described).encode()))]
    inputs: dict[str, Manifest | str] = {"run": newest.inputs["run"], "tokenizer": config.tokenizer, **parents}
    params = {"steps": list(steps), "weights": list(weights), "of": "ema" if ema else "weights"}
    made = stage.manifest(
        "checkpoint",
        Step(name="average", version=VERSION, params=params),
        inputs,
        [*files, *ctx.refs.load(config.tokenizer).named("tokenizer.json")],
        {"run_id": config.run_id, "step": max(steps), "tokens": config.tokens_through(max(steps)), "averaged": params},
    )
    ctx.refs.save(made)
    return made


def require_mean(ctx: Context, made: Manifest) -> None:
    """Prove a mean that somebody has made: the same again from the signed checkpoints that it names.

    Raises:
        CheckpointError: it is another, or a checkpoint of it does not verify.
        MissingError: its run, or a checkpoint of it, is gone.
    """
    params, run = made.params, str(made.stats["run_id"])
    config = configuration.load(ctx.workspace.runs / run / "config.json")
    again = average(ctx, config, params["steps"], params["weights"], ema=params["of"] == "ema")
    if again.digest != made.digest:
        raise CheckpointError(
            f"{made.digest[:12]} is not the mean that it says it is",
            found=made.digest,
            expected=f"{again.digest}, made again from steps {params['steps']} of run {run}",
            remedy="use the one that was made again",
        )


def _require(steps: Sequence[int], weights: Sequence[float]) -> None:
    if not steps or len(set(steps)) != len(steps):
        raise CheckpointError("the checkpoints to average", found=list(steps), expected="steps, each once")
    if len(weights) != len(steps) or not all(0 < weight < float("inf") for weight in weights):
        raise CheckpointError(
            "the weights of the checkpoints", found=list(weights), expected=f"{len(steps)} numbers above 0"
        )


def _write(path: Path, states: Sequence[ShardedState], weights: Sequence[float], kind: str) -> None:
    names = sorted(states[0].names, key=hf_name)
    for state in states:
        lacking = [name for name in names if kind not in state.kinds_of(name)] or sorted(state.names ^ set(names))
        if lacking:
            raise CheckpointError(
                f"{state.folder} has no {kind} of {lacking[0]}",
                expected="the same parameters in every checkpoint",
                remedy="a run keeps a mean where training.optimizer.ema_decay is set" if kind == EMA else None,
            )
    shapes = {name: states[0].shape_of(name) for name in names}
    sizes = {hf_name(name): ("F32", shape, 4 * torch.Size(shape).numel()) for name, shape in shapes.items()}

    def pieces() -> Iterator[memoryview]:
        yield memoryview(tensor_file.header(sizes, {"format": "pt"}))
        for name in names:
            yield _mean(states, weights, name, kind).contiguous().view(-1).numpy().data

    tensor_file.write_chunks(path, pieces())


def _mean(states: Sequence[ShardedState], weights: Sequence[float], name: str, kind: str) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for state, weight in zip(states, weights, strict=True):
        total = total + state.whole(name, kind).double() * weight
    return (total / sum(weights)).float()


def _part(name: str, blob: Blob) -> Part:
    return Part(name=name, blob=blob, rows=0)
