"""The full state of a run, into a checkpoint and out of it.

    engine/        parameters, master weights and optimizer state, as DeepSpeed writes them (per rank)
    rng/           generators of every rank, as JSON
    model/         whole parameters in Hugging Face's layout
    state.json     step, data position, monitor, digests of parameters and of every rank's optimizer state
    config.json    the run's configuration;  data.json  the manifests it reads

DeepSpeed unpickles what it loads, so `checkpoint.verify` runs first; and it can load something else
than it was asked for without a word, so digests are compared afterwards.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor

from plinth.errors import CheckpointError, DiskFullError, ResumeError
from plinth.storage.atomic import named_failures
from plinth.training import checkpoint
from plinth.training.config import RunConfig, identity
from plinth.training.directory import RunDirectory
from plinth.training.engine import Engine
from plinth.training.export import hf_config, save_model

TAG = "state"

#: Less free space than this after a failed write means that the disk was full.
FULL_BYTES = 2**20


def save(engine: Engine, step: int, monitor: dict[str, Any]) -> checkpoint.Commit | None:
    """Write and commit the full state after `step`; called by all ranks, answered on the leading one.

    Raises:
        DiskFullError, StorageError, CheckpointError: nothing was committed.
    """
    config, run = engine.config, engine.config.directory
    folder = run.staging / checkpoint.name(step)
    if engine.rank.leads:
        checkpoint.stage(run, step)
    dist.barrier()
    with _write_failures(folder):
        engine.deepspeed.save_checkpoint(str(folder / "engine"), tag=TAG, save_latest=False)
        _write_json(folder / "rng" / f"rank-{engine.rank.index:05d}.json", generators())
        parameters = dict(engine.parameters())
        proof = digests(engine, parameters)
        if engine.rank.leads:
            _write_model(config, engine.precision, folder / "model", parameters)
            state = {
                "identity": identity(config, step),
                "step": step,
                "tokens": config.tokens_through(step),
                "ranks": config.ranks,
                "zero_stage": config.parallel.zero_stage,
                "precision": engine.precision,
                **proof,
                "monitor": monitor,
            }
            _write_json(folder / "state.json", state)
            _write_json(folder / "config.json", config.model_dump(mode="json", exclude={"workspace"}))
            _write_json(folder / "data.json", {"mixture": config.mixture, "shards": dict(config.shards)})
    dist.barrier()
    record = checkpoint.commit(run, step) if engine.rank.leads else None
    dist.barrier()
    return record


def load(engine: Engine, step: int) -> dict[str, Any]:
    """Put the state of a *verified* checkpoint into the engine and the generators; returns its `state.json`.

    Raises:
        ResumeError: the checkpoint is of another run, number of ranks or precision.
        CheckpointError: what was loaded is not what was saved.
    """
    config = engine.config
    state = checkpoint.read_state(config.directory, step)
    require_same_run(config, engine.precision, state)
    folder = checkpoint.path(config.directory, step)
    loaded, _ = engine.deepspeed.load_checkpoint(str(folder / "engine"), tag=TAG)
    if loaded is None:
        raise CheckpointError(f"DeepSpeed found nothing to load in {folder / 'engine'}")
    restore_generators(json.loads((folder / "rng" / f"rank-{engine.rank.index:05d}.json").read_bytes()))
    found, expected = digests(engine), recorded_digests(config.directory, step)
    for part in expected:
        if found[part] != expected[part]:
            raise CheckpointError(
                f"{part} differs after loading {checkpoint.name(step)}", found=found[part], expected=expected[part]
            )
    return state


def digests(engine: Engine, parameters: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
    """Digests of the whole parameters (gathered unless given) and of every rank's optimizer state and generators.

    A collective: all ranks must ask together.
    """
    return {
        "parameters_sha256": parameters_digest(engine.parameters() if parameters is None else parameters.items()),
        "optimizer_sha256": _gathered(tensors_digest(engine.optimizer_tensors())),
        "rng_sha256": _gathered(hashlib.sha256(json.dumps(generators()).encode()).hexdigest()),
    }


def recorded_digests(run: RunDirectory, step: int) -> dict[str, Any]:
    """What `digests` gave when the checkpoint of `step` was saved."""
    state = checkpoint.read_state(run, step)
    return {part: state[part] for part in ("parameters_sha256", "optimizer_sha256", "rng_sha256")}


def parameters_digest(parameters: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in parameters:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def tensors_digest(tensors: Iterable[Tensor]) -> str:
    """SHA-256 over tensors in order."""
    return parameters_digest((str(index), tensor) for index, tensor in enumerate(tensors))


def generators() -> dict[str, Any]:
    """State of every random generator of this process, as JSON."""
    version, words, gauss = random.getstate()
    name, keys, *rest = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "numpy": [name, keys.tolist(), *rest],  # type: ignore[union-attr]
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state().numpy().tobytes().hex()
    return state


def restore_generators(state: dict[str, Any]) -> None:
    """Set every random generator of this process."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(_byte_tensor(state["torch"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_byte_tensor(state["cuda"]))


def _byte_tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def _bytes(tensor: Tensor) -> Any:
    """The tensor's memory, without a copy."""
    return tensor.contiguous().flatten().view(torch.uint8).numpy().data


def _gathered(value: str) -> list[str]:
    """The value of every rank, in rank order, on every rank."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


@contextmanager
def _write_failures(folder: Path) -> Iterator[None]:
    """PyTorch and safetensors hide the operating system's reason when the disk is full; name it."""
    try:
        with named_failures(folder):
            yield
    except (RuntimeError, SafetensorError) as error:
        free = shutil.disk_usage(folder.parent).free
        if free > FULL_BYTES:
            raise
        raise DiskFullError(
            f"no space left while writing {folder}",
            found=f"{free} bytes free",
            expected="room for the whole checkpoint; the last committed one is untouched",
            remedy="free space or lower checkpoints.keep_last, then run the same command again",
        ) from error


def _write_model(config: RunConfig, precision: str, folder: Path, parameters: dict[str, Tensor]) -> None:
    dtype = "bfloat16" if precision == "bf16" else "float32"
    description = hf_config(config.model, config.vocab_size, config.sequence_tokens, dtype, config.end_of_text)
    save_model(folder, parameters, description)


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def require_same_run(config: RunConfig, precision: str, state: Mapping[str, Any]) -> None:
    """Refuse a state that this run cannot go on from exactly.

    Raises:
        ResumeError: of another run, number of ranks or precision.
    """
    name = checkpoint.name(state["step"])
    if state["identity"] != identity(config, state["step"]):
        raise ResumeError(
            f"{name} belongs to another run",
            found=f"identity {state['identity']}",
            expected=f"identity {identity(config, state['step'])} of run {config.run_id}",
            remedy="each run has its own directory; do not copy checkpoints between them",
        )
    if state["ranks"] != config.ranks:
        raise ResumeError(
            f"{name} was saved by another number of ranks",
            found=f"{state['ranks']} ranks",
            expected=f"{config.ranks} ranks",
            remedy=f"set training.launch.ranks to {state['ranks']}; a resume is exact on the same number only",
        )
    if state["precision"] != precision:
        raise ResumeError(
            f"{name} was saved in another precision, which `precision: auto` chose on another device",
            found=state["precision"],
            expected=precision,
            remedy=f"go on where the run began, or start a run with training.precision: {precision}",
        )
