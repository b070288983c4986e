"""Saving and loading of the full state of a run.

    engine/        master weights and optimizer state in pieces of whole parameters, one file per rank (sharded_state)
    rng/           generators of every rank, as JSON
    model/         whole parameters in Hugging Face's layout, each in the file of one rank (model_share)
    ranks/         files of each rank, with digests (digest_tree)
    state.json     step, data position, monitor, digests of parameters and of every rank's optimizer state
    config.json    the run's configuration;  data.json  the manifests it reads

Nothing is pickled. Every byte is compared with the manifests before it is read (resume). Each rank also compares
digests while it loads its part of the engine's state: of the optimizer state as it is read, and of the derived weights
at the end.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from plinth.errors import CheckpointError, ResumeError
from plinth.model.hugging_face import CONFIG, config_text, hf_config, hf_name
from plinth.model.parameters import Model
from plinth.training.checkpoint import checkpoint, model_share, sharded_state, universal
from plinth.training.checkpoint.digest_tree import Beat, silent
from plinth.training.checkpoint.digest_tree import share as share_of_ranks
from plinth.training.checkpoint.model_share import file_names, index_text
from plinth.training.checkpoint.rank_part import (
    Lead,
    SharedSave,
    TensorsFile,
    WritePlan,
    digest_of_lines,
)
from plinth.training.checkpoint.sharded_state import file_name, metadata_of
from plinth.training.checkpoint.staging import FilledTensors, StagingLayout, line_of, tensors_digest
from plinth.training.config import RunConfig, identity, layout_of
from plinth.training.corruption import sampling
from plinth.training.directory import RunDirectory
from plinth.training.engine.engine import TrainingEngine, seed
from plinth.training.telemetry.timeline import Pulse


def plan(
    engine: TrainingEngine, step: int, monitor: dict[str, Any], mode: str, shared: SharedSave | None = None
) -> tuple[WritePlan, StagingLayout]:
    """Return this rank's write plan for the checkpoint after `step`, and the layout of the tensors to copy.

    All ranks must call this. The engine still owns the tensors: copy them (`StagingLayout.copy`) before the next
    optimizer update changes them.
    """
    rank, run = engine.rank, engine.config.directory
    division = model_share.division_of(engine)
    captured = universal.capture(engine)
    share = list(model_share.share(engine, division, Pulse(run.events)))
    parts = list(engine.optimizer_tensors())
    layout = StagingLayout([*captured.tensors.values(), *(tensor for _, tensor in share), *parts])
    pieces = tuple(layout.describe(index, key) for index, key in enumerate(captured.tensors))
    parameters = tuple(layout.describe(len(pieces) + index, name) for index, (name, _) in enumerate(share))
    first = len(pieces) + len(share)
    state = json.dumps(generators())
    files = [TensorsFile(path=f"engine/{file_name(rank.index)}", metadata=metadata_of(captured), tensors=pieces)]
    if parameters:
        named = (one.model_copy(update={"name": hf_name(one.name)}) for one in parameters)
        whole, path = tuple(sorted(named, key=lambda one: one.name)), file_names(division.tensors)[rank.index]
        files.append(TensorsFile(path=f"model/{path}", metadata={"format": "pt"}, tensors=whole))
    made = WritePlan(
        run=str(run.root),
        step=step,
        rank=rank.index,
        mode=mode,
        tensor_files=tuple(files),
        texts={f"rng/rank-{rank.index:05d}.json": state},
        pieces=captured.pieces,
        parameters=parameters,
        optimizer=tuple(layout.describe(first + index, str(index)) for index in range(len(parts))),
        rng_sha256=hashlib.sha256(state.encode()).hexdigest(),
        lead=_lead(engine, step, monitor, division) if rank.leads else None,
        shared=shared,
    )
    return made, layout


def _lead(engine: TrainingEngine, step: int, monitor: dict[str, Any], division: model_share.ModelDivision) -> Lead:
    config = engine.config
    state = {
        "identity": identity(config, step),
        "step": step,
        "tokens": config.tokens_through(step),
        "ranks": config.ranks,
        "zero_stage": config.parallel.zero_stage,
        "layout": layout_of(config),
        "precision": engine.precision,
        "monitor": monitor,
    }
    always = (config.audit_step, config.total_steps, *sampling.trusted(monitor, checkpoint.committed(config.directory)))
    texts = _texts(engine, step, division)
    return Lead(ranks=config.ranks, state=state, texts=texts, checkpoints=config.checkpoints, always=always)


#: Cached texts by engine and by the model's configuration at a step. Only rotary positions change during a run.
_TEXTS: WeakKeyDictionary[TrainingEngine, dict[Model, dict[str, str]]] = WeakKeyDictionary()


def _texts(engine: TrainingEngine, step: int, division: model_share.ModelDivision) -> dict[str, str]:
    """Return the text files of a checkpoint. They are cached, because training waits for them."""
    config, held = engine.config, _TEXTS.setdefault(engine, {})
    model = config.model_at(step)
    if model not in held:
        index = index_text(division.tensors, division.bytes)
        named = {f"model/{name}": text for name, text in index.items()}
        held[model] = _described(config, engine.precision, step) | named
    return held[model]


def _described(config: RunConfig, precision: str, step: int) -> dict[str, str]:
    """Return the checkpoint's text files that describe the tensors and their training data, by path."""
    dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(precision, "float32")
    model = hf_config(config.model_at(step), config.vocab_size, config.sequence_tokens, dtype, config.end_of_text)
    return {
        f"model/{CONFIG}": config_text(model),
        "config.json": _json(config.model_dump(mode="json", exclude={"workspace", "identity"})),
        "data.json": _json({"mixture": config.mixture, "shards": dict(config.shards)}),
    }


def load(engine: TrainingEngine, step: int) -> dict[str, Any]:
    """Load the state of a *verified* checkpoint into the engine and the generators, and return its `state.json`.

    All ranks must call this. In the layout that saved the checkpoint, all digests are compared. In another layout only
    the digests of whole parameters are compared, because each rank then has other parts of the optimizer state.

    Raises:
        ResumeError: the checkpoint belongs to another run or precision.
        CheckpointError: the loaded state differs from the saved state. It is raised on every rank.
    """
    config, beat = engine.config, Pulse(engine.config.directory.events)
    state = checkpoint.read_state(config.directory, step)
    require_same_run(config, engine.precision, state)
    folder = checkpoint.path(config.directory, step)
    same_layout = state["layout"] == layout_of(config)
    held = FilledTensors() if same_layout else None
    universal.restore(engine, folder / "engine", ranks_needed(engine, step, beat), beat, held)
    if same_layout:
        restore_generators(json.loads((folder / "rng" / f"rank-{engine.rank.index:05d}.json").read_bytes()))
    else:  # a rank's random generators belong to its data; Plinth's training steps never draw from them
        seed(config.seed + engine.rank.index)
    found = digests(engine, held)
    for subject in DIGESTS if same_layout else ("parameters_sha256",):
        if found[subject] != state[subject]:
            raise CheckpointError(
                f"{subject} differs after loading {checkpoint.name(step)}",
                found=found[subject],
                expected=state[subject],
            )
    return state


def ranks_needed(
    engine: TrainingEngine, step: int, beat: Beat = silent, other: RunDirectory | None = None
) -> list[int]:
    """Return the ranks whose state files this rank must open: only itself if it wrote all the state that it now needs.

    All ranks must call this. If some rank needs more than its own file, each rank reads some of the manifests, and the
    ranks exchange their content. `other` is the run of the checkpoint if it is not the engine's own run.
    """
    run, rank = other or engine.config.directory, engine.rank
    root, wanted = checkpoint.read_root(run, step), universal.pieces_of(engine)
    manifests = checkpoint.rank_manifests(run, step, share_of_ranks(root, rank.index, rank.world))
    held = next((one.pieces for one in manifests if one.rank == rank.index), {})
    beat()
    if _gathered(sharded_state.covers(held, wanted), all):
        return [rank.index]
    table = _gathered(sharded_state.table_of(manifests), np.concatenate)
    return sharded_state.ranks_for(table, wanted) or [0]  # every file has the counters


#: Digests computed by `digests` and stored in `state.json`.
DIGESTS = ("parameters_sha256", "optimizer_sha256", "rng_sha256")


class _Own(NamedTuple):
    """Digests of the state on one rank, to be gathered from all ranks."""

    parameters: dict[str, str]
    optimizer_sha256: str
    rng_sha256: str


def digests(engine: TrainingEngine, held: FilledTensors | None = None) -> dict[str, Any]:
    """Return the digests of the whole parameters, and of the optimizer state and generators of every rank.

    All ranks must call this. Each parameter is hashed by the rank that writes it, so the digest of the parameters is
    independent of the layout. `held` is the digest of the optimizer's state, computed while the state was filled.
    """
    beat = Pulse(engine.config.directory.events)
    share = model_share.share(engine, model_share.division_of(engine), beat)
    own = _Own(
        {name: line_of(name, tensor, beat) for name, tensor in share},
        tensors_digest(engine.optimizer_tensors(), beat) if held is None else held.digest(beat),
        hashlib.sha256(json.dumps(generators()).encode()).hexdigest(),
    )
    every: list[_Own] = _gathered(own, list)
    lines = {name: line for one in every for name, line in one.parameters.items()}
    return {
        "parameters_sha256": digest_of_lines(lines[name] for name in sorted(lines)),
        "optimizer_sha256": [one.optimizer_sha256 for one in every],
        "rng_sha256": [one.rng_sha256 for one in every],
    }


def recorded_digests(run: RunDirectory, step: int) -> dict[str, Any]:
    """Return the digests that were saved with the checkpoint of `step`."""
    state = checkpoint.read_state(run, step)
    return {part: state[part] for part in DIGESTS}


def parameters_digest(parameters: Iterable[tuple[str, Tensor]]) -> str:
    """Return one SHA-256 over the names, dtypes, shapes and BLAKE3 digests of whole parameters, sorted by name, as in
    `digests`."""
    lines = {name: line_of(name, tensor) for name, tensor in parameters}
    return digest_of_lines(lines[name] for name in sorted(lines))


def generators() -> dict[str, Any]:
    """Return the state of every random generator of this process, as JSON."""
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
    """Set the state of every random generator of this process."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(_byte_tensor(state["torch"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_byte_tensor(state["cuda"]))


def _byte_tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def _gathered(value: Any, joined: Callable[[list[Any]], Any]) -> Any:
    """Gather `value` from all ranks, in rank order, and return `joined` of the list on every rank."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return joined(values)


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def require_same_run(config: RunConfig, precision: str, state: Mapping[str, Any]) -> None:
    """Raise an error if this run cannot continue exactly from a saved state.

    Raises:
        ResumeError: the state belongs to another run or precision.
    """
    checkpoint.require_identity(config, state)
    name = checkpoint.name(state["step"])
    if state["precision"] != precision:
        raise ResumeError(
            f"{name} was saved in another precision, chosen by `precision: auto` on another device",
            found=state["precision"],
            expected=precision,
            remedy=f"continue on the original device type, or start a new run with `training.precision: {precision}`",
        )
