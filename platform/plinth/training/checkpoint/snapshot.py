"""The full state of a run, into a checkpoint and out of it.

    engine/        master weights and optimizer state in pieces of whole parameters, one file per rank (sharded_state)
    rng/           generators of every rank, as JSON
    model/         whole parameters in Hugging Face's layout
    state.json     step, data position, monitor, digests of parameters and of every rank's optimizer state
    config.json    the run's configuration;  data.json  the manifests it reads

Nothing is pickled. Every byte is compared with the manifest before it is read (`checkpoint.verify`), and digests
of what the engine holds are compared after loading.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from plinth.errors import CheckpointError, ResumeError
from plinth.model.hugging_face import CONFIG, WEIGHTS, config_text, hf_config, hf_name
from plinth.training.checkpoint import checkpoint, universal
from plinth.training.checkpoint.sharded_state import file_name, metadata_of
from plinth.training.checkpoint.writer import rank_part as part
from plinth.training.checkpoint.writer.rank_part import Lead, TensorsFile, WritePlan
from plinth.training.checkpoint.writer.staging import StagingLayout
from plinth.training.config import RunConfig, identity
from plinth.training.directory import RunDirectory
from plinth.training.engine.engine import TrainingEngine, seed


def plan(engine: TrainingEngine, step: int, monitor: dict[str, Any], mode: str) -> tuple[WritePlan, StagingLayout]:
    """The write plan of this rank for the checkpoint after `step`, and its tensors, which the engine still owns.

    A collective. Copy the tensors (`StagingLayout.copy`) before the next update of the optimizer changes them.
    """
    config, rank = engine.config, engine.rank
    captured = universal.capture(engine)
    whole = list(_whole_parameters(engine))
    parts = list(engine.optimizer_tensors())
    layout = StagingLayout([*captured.tensors.values(), *(tensor for _, tensor in whole), *parts])
    pieces = tuple(layout.describe(index, key) for index, key in enumerate(captured.tensors))
    parameters = tuple(layout.describe(len(pieces) + index, name) for index, (name, _) in enumerate(whole))
    first = len(pieces) + len(whole)
    state = json.dumps(generators())
    path = f"engine/{file_name(rank.index)}"
    metadata = metadata_of(captured)
    files, texts = (
        [TensorsFile(path=path, metadata=metadata, tensors=pieces)],
        {f"rng/rank-{rank.index:05d}.json": state},
    )
    if rank.leads:
        named = sorted((one.model_copy(update={"name": hf_name(one.name)}) for one in parameters), key=_name_of)
        files.append(TensorsFile(path=f"model/{WEIGHTS}", metadata={"format": "pt"}, tensors=tuple(named)))
        texts |= _described(config, engine.precision)
    made = WritePlan(
        run=str(config.directory.root),
        step=step,
        rank=rank.index,
        mode=mode,
        tensor_files=tuple(files),
        texts=texts,
        parameters=parameters if rank.leads else None,
        optimizer=tuple(layout.describe(first + index, str(index)) for index in range(len(parts))),
        rng_sha256=hashlib.sha256(state.encode()).hexdigest(),
        lead=_lead(engine, step, monitor) if rank.leads else None,
    )
    return made, layout


def _lead(engine: TrainingEngine, step: int, monitor: dict[str, Any]) -> Lead:
    config = engine.config
    state = {
        "identity": identity(config, step),
        "step": step,
        "tokens": config.tokens_through(step),
        "ranks": config.ranks,
        "zero_stage": config.parallel.zero_stage,
        "layout": universal.layout_of(config),
        "precision": engine.precision,
        "monitor": monitor,
    }
    always = (config.audit_step, config.total_steps)
    return Lead(ranks=config.ranks, state=state, checkpoints=config.checkpoints, always=always)


def _described(config: RunConfig, precision: str) -> dict[str, str]:
    """Files that describe the tensors and the data that they were trained on."""
    dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(precision, "float32")
    model = hf_config(config.model, config.vocab_size, config.sequence_tokens, dtype, config.end_of_text)
    return {
        f"model/{CONFIG}": config_text(model),
        "config.json": _json(config.model_dump(mode="json", exclude={"workspace"})),
        "data.json": _json({"mixture": config.mixture, "shards": dict(config.shards)}),
    }


def _whole_parameters(engine: TrainingEngine) -> Iterator[tuple[str, Tensor]]:
    """Whole parameters on the leading rank, without a copy where the rank holds them as they are; a collective."""
    if engine.config.parallel.zero_stage < 3 and engine.config.parallel.model_ranks == 1:
        if engine.rank.leads:
            yield from ((universal.plain_name(name), p.detach()) for name, p in engine.module.named_parameters())
        return
    for name, tensor in engine.parameters():
        if engine.rank.leads:
            yield name, tensor


def load(engine: TrainingEngine, step: int) -> dict[str, Any]:
    """Put the state of a *verified* checkpoint into the engine and the generators; returns its `state.json`.

    On the layout of ranks that saved it, everything is compared; on another, the whole parameters, since every
    rank's share of the rest is another.

    Raises:
        ResumeError: the checkpoint is of another run or precision.
        CheckpointError: the loaded state differs from the saved one.
    """
    config = engine.config
    state = checkpoint.read_state(config.directory, step)
    require_same_run(config, engine.precision, state)
    folder = checkpoint.path(config.directory, step)
    universal.restore(engine, folder / "engine")
    same_layout = state["layout"] == universal.layout_of(config)
    if same_layout:
        restore_generators(json.loads((folder / "rng" / f"rank-{engine.rank.index:05d}.json").read_bytes()))
    else:  # a rank's generators belong to the data it saw; nothing in a step of ours draws from them
        seed(config.seed + engine.rank.index)
    found, expected = digests(engine), recorded_digests(config.directory, step)
    for subject in expected if same_layout else ("parameters_sha256",):
        if found[subject] != expected[subject]:
            raise CheckpointError(
                f"{subject} differs after loading {checkpoint.name(step)}",
                found=found[subject],
                expected=expected[subject],
            )
    return state


def digests(engine: TrainingEngine, parameters: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
    """Digests of the whole parameters (gathered unless given) and of every rank's optimizer state and generators.

    A collective.
    """
    return {
        "parameters_sha256": parameters_digest(engine.parameters() if parameters is None else parameters.items()),
        "optimizer_sha256": _gathered(tensors_digest(engine.optimizer_tensors())),
        "rng_sha256": _gathered(hashlib.sha256(json.dumps(generators()).encode()).hexdigest()),
    }


def recorded_digests(run: RunDirectory, step: int) -> dict[str, Any]:
    """The digests that the checkpoint of `step` was saved with."""
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
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def _gathered(value: str) -> list[str]:
    """The value of every rank, in rank order, on every rank."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def _name_of(tensor: part.Tensor) -> str:
    return tensor.name


def require_same_run(config: RunConfig, precision: str, state: Mapping[str, Any]) -> None:
    """Refuse a state from which this run cannot continue exactly.

    Raises:
        ResumeError: of another run or precision.
    """
    name = checkpoint.name(state["step"])
    if state["identity"] != identity(config, state["step"]):
        raise ResumeError(
            f"{name} belongs to another run",
            found=f"identity {state['identity']}",
            expected=f"identity {identity(config, state['step'])} of run {config.run_id}",
            remedy="each run has its own directory; do not copy checkpoints between them",
        )
    if state["precision"] != precision:
        raise ResumeError(
            f"{name} was saved in another precision, which `precision: auto` chose on another device",
            found=state["precision"],
            expected=precision,
            remedy=f"go on where the run began, or start a run with training.precision: {precision}",
        )
