"""Loading of a checkpoint from any layout into any other: DeepSpeed's memory in a layout-independent form.

    capture   this rank's master weights and Adam moments as pieces of whole parameters, without a copy
    restore   copies the pieces that this rank needs, from any writer, into DeepSpeed's flat partitions

Ranks, ZeRO stage, tensor and pipeline degree may differ between saving and loading. With an equal layout every rank
reads its own file only. DeepSpeed's own tool `ds_to_universal` converts offline and uses pickles.

Does not belong here: the form of the files (sharded_state).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from plinth.model.division import buffers
from plinth.training.checkpoint.sharded_state import MASTER, WHOLE, Captured, Piece, Shard, ShardedState, Share, key_of
from plinth.training.checkpoint.staging import FilledTensors
from plinth.training.engine.engine import TrainingEngine
from plinth.training.parallel.topology import has_own_experts

#: Counters of DeepSpeed's engine.
COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")

#: State of DeepSpeed's loss scalers, of any class.
_SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


class _Slot(NamedTuple):
    """Position of one parameter's range in the flat tensors that the optimizer updates."""

    start: int  # first element of the flattened parameter
    flat: Tensor  # master weights
    offset: int  # in `flat`
    size: int


def capture(engine: TrainingEngine, *, complete: bool = False) -> Captured:
    """Return this rank's contribution to a checkpoint: views of the engine's memory. One rank may call this alone.

    Args:
        complete: True to include numbers that other ranks also have, so that this rank can be restored from its own
            contribution.
    """
    tensors: dict[str, Tensor] = {}
    shapes: dict[str, list[int]] = {}
    pieces: dict[str, Piece] = {}
    for share in shares(engine):
        first, last = (0, share.state[MASTER].numel()) if complete else _written_range(engine, share)
        if first == last:
            continue
        shapes[share.name] = list(share.shape)
        pieces[share.name] = Piece(*share.shard, share.start + first, share.start + last)
        for kind, values in share.state.items():
            tensors[key_of(share, kind, share.start + first)] = values[first:last]
    header = {**counts(engine), "shapes": shapes, "groups": _kinds_by_group(engine.deepspeed)}
    return Captured(tensors, header, pieces)


def counts(engine: TrainingEngine) -> dict[str, Any]:
    """Return the part of a contribution's header that changes in every step."""
    outer = engine.deepspeed
    scaler = vars(_scaler(outer.optimizer)).items()
    return {
        "optimizer_step": _optimizer_step(outer.basic_optimizer),
        "counters": {name: int(getattr(outer, name)) for name in COUNTERS},
        "scaler": {name: value for name, value in scaler if name in _SCALER},
    }


def _kinds_by_group(outer: Any) -> list[dict[str, list[str]]]:
    """Return, for each parameter group, the kinds of optimizer state of its parameters. This includes groups of which
    this rank has an empty range."""
    inner, found = outer.basic_optimizer, list[dict[str, list[str]]]()
    for flat, group in _flats(outer):
        kinds = sorted(_moments(inner, flat))
        names = [plain_name(name) for name in group["names"]]
        if {"names": names, "kinds": kinds} not in found:
            found.append({"names": names, "kinds": kinds})
    return found


def pieces_of(engine: TrainingEngine) -> dict[str, Piece]:
    """Return the range of each parameter's state that this rank has."""
    return {
        share.name: Piece(*share.shard, share.start, share.start + size)
        for share in shares(engine)
        if (size := share.state[MASTER].numel())
    }


def restore(
    engine: TrainingEngine,
    folder: Path,
    ranks: Iterable[int] | None = None,
    beat: Callable[[], object] = int,
    held: FilledTensors | None = None,
    files: Iterable[Path] | None = None,
) -> None:
    """Load state from any layout into this engine. All ranks must call this.

    Args:
        engine: a newly opened engine.
        folder: folder of the state's files.
        ranks: ranks whose files this rank needs; all by default.
        beat: called after each piece.
        held: receives the digest of the optimizer's state.
        files: files with any names, to open in place of the ranks' files.

    Raises:
        CheckpointError: a file cannot be read, or part of a parameter's state is missing.
    """
    outer = engine.deepspeed
    with ExitStack() as stack:
        pieces = ShardedState(stack, folder, ranks, beat, files)
        _prepare(outer, int(pieces.header["optimizer_step"]), pieces)
        if held is not None:
            held.follow(engine.optimizer_tensors())
        for share in shares(engine):
            for kind, values in share.state.items():
                pieces.fill(values, share, kind, held)
        for name, value in pieces.header["counters"].items():
            setattr(outer, name, value)
        for name, value in pieces.header["scaler"].items():
            setattr(_scaler(outer.optimizer), name, value)
    refresh_weights(outer.optimizer)


def masters_of(engine: TrainingEngine) -> Captured:
    """Return this rank's master weights, in the form that `capture` returns."""
    captured = capture(engine)
    masters = {key: values for key, values in captured.tensors.items() if key.split("/")[1] == MASTER}
    return Captured(masters, {"shapes": captured.header["shapes"]})


def replace_masters(engine: TrainingEngine, file: Path, beat: Callable[[], object] = int) -> None:
    """Load all master weights of the engine from one file; keep the optimizer's state. All ranks must call this.

    Raises:
        CheckpointError: the file cannot be read, or lacks part of a parameter.
    """
    with ExitStack() as stack:
        pieces = ShardedState(stack, file.parent, beat=beat, files=[file])
        for share in shares(engine):
            pieces.fill(share.state[MASTER], share, MASTER)
    refresh_weights(engine.deepspeed.optimizer)


def shares(engine: TrainingEngine) -> Iterator[Share]:
    """Yield this rank's part of each parameter's state, in the order of the module."""
    outer, inner = engine.deepspeed.optimizer, engine.deepspeed.basic_optimizer
    masters = _unfused_masters(outer)
    for name, parameter in engine.module.named_parameters():
        slot = _slot(outer, parameter, masters)
        if slot is None:
            continue
        shard = Shard(*getattr(parameter, "shard", WHOLE))
        state = {MASTER: slot.flat, **_moments(inner, slot.flat)}
        yield Share(
            name=plain_name(name),
            shape=tuple(getattr(parameter, "ds_shape", parameter.shape)),
            shard=shard,
            start=slot.start,
            state={kind: all_.detach().view(-1)[slot.offset :][: slot.size] for kind, all_ in state.items()},
            copy=_is_copy(engine, shard),
            experts=has_own_experts(parameter),
        )
    for name, buffer in buffers(engine.module):
        values = {MASTER: buffer.detach().view(-1)}
        yield Share(plain_name(name), tuple(buffer.shape), Shard(*WHOLE), 0, values, on_every_rank=True)


def plain_name(name: str) -> str:
    """Return a parameter's name without the parts that `torch.compile` and activation checkpointing add."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def _slot(outer: Any, parameter: Any, masters: Mapping[int, Tensor]) -> _Slot | None:
    """Return this rank's range of a parameter, or None if it is entirely on other ranks."""
    if hasattr(outer, "fp32_partitioned_groups_flat"):  # ZeRO-3: every parameter divided evenly, with padding
        group, offset, padded = outer.grad_position[outer.get_param_id(parameter)]
        start = padded * dist.get_rank(outer.dp_process_group)
        size = min(padded, parameter.ds_numel - start)
        return _Slot(start, outer.fp32_partitioned_groups_flat[group], offset, size) if size > 0 else None
    if hasattr(parameter, "_hp_mapping"):  # ZeRO-1 and ZeRO-2: concatenated parameters of a group, divided evenly
        mapping = parameter._hp_mapping
        if mapping is None:
            return None
        ours, master = mapping.lp_fragment_address, mapping.hp_fragment_address
        flat = outer.single_partition_of_fp32_groups[mapping.param_group_index]
        return _Slot(ours.start, flat, master.start, master.numel)
    return _Slot(0, masters.get(id(parameter), parameter), 0, parameter.numel())


def _unfused_masters(outer: Any) -> dict[int, Tensor]:
    """Return the FP32 master weights of each parameter by the parameter's id, for runs in reduced precision without
    ZeRO."""
    if hasattr(outer, "fp32_partitioned_groups_flat"):
        return {}
    pairs = zip(getattr(outer, "fp16_groups", []), getattr(outer, "fp32_groups", []), strict=True)
    return {id(half): master for halves, masters in pairs for half, master in zip(halves, masters, strict=True)}


def _moments(inner: Any, flat: Tensor) -> dict[str, Tensor]:
    state = inner.state.get(flat, {})
    return {key: state[key] for key in sorted(state) if key != "step" and isinstance(state[key], Tensor)}


def _is_copy(engine: TrainingEngine, shard: Shard) -> bool:
    """Return True if a parameter is not divided over tensor ranks and the first tensor rank, not this one, writes its
    state."""
    return shard == WHOLE and engine.topology.place.tensor > 0


def _written_range(engine: TrainingEngine, share: Share) -> tuple[int, int]:
    """Return the elements that this rank writes from its range of a parameter. Without ZeRO each replica writes an
    equal part."""
    size = share.state[MASTER].numel()
    if share.copy:
        return 0, 0
    if engine.config.parallel.zero_stage > 0 or share.on_every_rank:
        return 0, size
    group = engine.topology.expert_replicas if share.experts else engine.deepspeed.seq_data_parallel_group
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    return size * rank // world, size * (rank + 1) // world


def _flats(outer: Any) -> list[tuple[Tensor, dict[str, Any]]]:
    """Return the tensors that the optimizer updates, with their parameter groups. ZeRO-3 empties its groups between
    steps."""
    groups, three = outer.basic_optimizer.param_groups, getattr(outer.optimizer, "fp32_partitioned_groups_flat", None)
    if three:
        return [(flat, groups[outer.optimizer.sub_group_to_group_id[number]]) for number, flat in enumerate(three)]
    return [(flat, group) for group in groups for flat in group["params"]]


def _optimizer_step(inner: Any) -> int:
    return max((int(state["step"]) for state in inner.state.values() if "step" in state), default=0)


def _prepare(outer: Any, step: int, pieces: ShardedState) -> None:
    """Create the optimizer state as it is after `step` steps; the values of the moments are filled in later."""
    inner = outer.basic_optimizer
    counts_in_tensors = not type(inner).__module__.startswith("deepspeed")
    for flat, group in _flats(outer):
        state, moments = inner.state[flat], set[str]().union(*(pieces.kinds_of(plain_name(n)) for n in group["names"]))
        for name in sorted(moments - {MASTER}):
            if name not in state:
                state[name] = torch.zeros_like(flat, memory_format=torch.preserve_format)
        if not group.get("counts_steps", True):
            continue
        fused = inner.defaults.get("fused") or inner.defaults.get("capturable")
        count = torch.tensor(float(step), dtype=torch.float32, device=flat.device if fused else "cpu")
        state["step"] = count if counts_in_tensors else step


def _scaler(outer: Any) -> Any:
    """Return the object that stores DeepSpeed's loss scale."""
    return getattr(outer, "loss_scale_config", None) or getattr(outer, "loss_scaler", None) or _NoLossScaler()


class _NoLossScaler:
    """Placeholder for the loss scaler in runs without loss scaling."""


def refresh_weights(outer: Any) -> None:
    """Recompute the weights of the forward pass from the master weights. All ranks must call this."""
    if hasattr(outer, "fp32_partitioned_groups_flat"):
        for group in range(len(outer.fp32_partitioned_groups_flat)):
            outer._reassign_or_swap_out_partitioned_parameters(group)
        if outer.persistent_parameters:
            outer.persistent_parameters[0].partition(outer.persistent_parameters)
            outer.persistent_parameters[0].all_gather(outer.persistent_parameters)
    elif hasattr(outer, "update_lp_params"):
        outer.update_lp_params()
    else:
        for halves, masters in zip(getattr(outer, "fp16_groups", []), getattr(outer, "fp32_groups", []), strict=True):
            for half, master in zip(halves, masters, strict=True):
                half.data.copy_(master.data)
