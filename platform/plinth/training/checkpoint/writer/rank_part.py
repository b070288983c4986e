"""One rank's part of a checkpoint, written from memory, and the commit when the parts of all ranks are there.

    staging/step-00000100/            the files of all ranks
    staging/step-00000100.parts/      rank-00000.json: the files of a rank, their SHA-256, its digests

A part is described by a `WritePlan`, plain JSON over one block of memory, so that the same function writes it in
the rank itself (`mode: sync`) or in another process (`mode: async`), without torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from plinth import fingerprint
from plinth.records import Frozen
from plinth.storage import tensor_file
from plinth.storage.atomic import named_failures, write_bytes
from plinth.storage.tensor_file import Do, at_once
from plinth.training.checkpoint import checkpoint, retention
from plinth.training.checkpoint.commit_record import Commit
from plinth.training.checkpoint.file_digests import File
from plinth.training.checkpoint.parameters import Checkpoints
from plinth.training.directory import RunDirectory
from plinth.training.telemetry.timeline import Timeline


class Tensor(Frozen):
    """A tensor in the block: its place, and its dtype by the names of safetensors and of torch."""

    name: str
    dtype: str
    torch_dtype: str
    shape: tuple[int, ...]
    at: int
    bytes: int


class TensorsFile(Frozen):
    """A file of tensors, in order."""

    path: str
    metadata: Mapping[str, str]
    tensors: tuple[Tensor, ...]


class Lead(Frozen):
    """Data that the leading rank's writer needs to commit."""

    ranks: int
    state: Mapping[str, Any]  # of `state.json`, without digests
    checkpoints: Checkpoints
    always: tuple[int, ...]  # steps that retention keeps


class WritePlan(Frozen):
    """The files that one rank writes for one checkpoint."""

    run: str  # the run's directory
    step: int
    rank: int
    mode: str
    tensor_files: tuple[TensorsFile, ...]
    texts: Mapping[str, str]
    parameters: tuple[Tensor, ...] | None = None  # whole, on the leading rank
    optimizer: tuple[Tensor, ...]
    rng_sha256: str
    lead: Lead | None = None

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.run)


class RankPart(Frozen):
    """The files that one rank has written, with digests."""

    rank: int
    files: tuple[File, ...]
    parameters_sha256: str | None
    optimizer_sha256: str
    rng_sha256: str


def parts_folder(run: RunDirectory, step: int) -> Path:
    """Folder of the parts: the record of each rank's files."""
    return run.staging / f"{checkpoint.name(step)}.parts"


def part_path(run: RunDirectory, step: int, rank: int) -> Path:
    """The part of one rank."""
    return parts_folder(run, step) / f"rank-{rank:05d}.json"


def write(plan: WritePlan, block: memoryview, do: Do = at_once) -> RankPart:
    """Write and flush the files of a rank, then its part. Most of the work is done in pieces, by `do`.

    Raises:
        DiskFullError, WorkspaceError, StorageError: as the operating system refuses.
    """
    folder = plan.directory.staging / checkpoint.name(plan.step)
    files = []
    with named_failures(folder):
        for one in plan.tensor_files:
            entries = {
                tensor.name: tensor_file.TensorEntry(
                    tensor.dtype, tensor.shape, block[tensor.at : tensor.at + tensor.bytes]
                )
                for tensor in one.tensors
            }
            done = tensor_file.write(folder / one.path, entries, one.metadata, do)
            files.append(File(path=one.path, bytes=done.bytes, sha256=done.sha256))
        for name, text in plan.texts.items():
            done = tensor_file.write_chunks(folder / name, [memoryview(text.encode())])
            files.append(File(path=name, bytes=done.bytes, sha256=done.sha256))
    part = RankPart(
        rank=plan.rank,
        files=tuple(files),
        parameters_sha256=None if plan.parameters is None else digest(plan.parameters, block, do),
        optimizer_sha256=digest(plan.optimizer, block, do),
        rng_sha256=plan.rng_sha256,
    )
    write_bytes(part_path(plan.directory, plan.step, plan.rank), fingerprint.canonical(part))
    return part


class Timing(NamedTuple):
    """Seconds that a save has taken before its files were begun, and when it began (`time.monotonic`)."""

    begun: float
    stall_s: float
    wait_s: float


def missing(plan: WritePlan, lead: Lead) -> list[int]:
    """Ranks whose part is not there yet; none when the checkpoint can be committed."""
    ranks = range(lead.ranks)
    return [rank for rank in ranks if not part_path(plan.directory, plan.step, rank).exists()]


def commit(plan: WritePlan, lead: Lead, timing: Timing) -> Commit:
    """Commit the parts of all ranks, log it on the timeline, and delete the checkpoints that retention does not keep.

    Raises:
        DiskFullError, WorkspaceError, StorageError, CheckpointError, SignatureError: nothing was committed.
    """
    run, step = plan.directory, plan.step
    ranks = range(lead.ranks)
    parts = [RankPart.model_validate_json(part_path(run, step, rank).read_bytes()) for rank in ranks]
    files = sorted([_write_state(plan, lead, parts), *(file for part in parts for file in part.files)], key=_path_of)
    record = checkpoint.commit(run, step, files)
    events = Timeline(run.events)
    events.append(
        "checkpoint",
        step=step,
        bytes=record.bytes,
        seconds=round(time.monotonic() - timing.begun, 3),
        stall_s=round(timing.stall_s, 4),
        wait_s=round(timing.wait_s, 4),
        mode=plan.mode,
        durable=True,
    )
    with contextlib.suppress(OSError):  # remains are deleted by the next attempt
        shutil.rmtree(parts_folder(run, step))
    removed = retention.retain(run, lead.checkpoints, set(lead.always))
    if removed:
        events.append("retired", steps=removed, reason="retention")
    return record


def _write_state(plan: WritePlan, lead: Lead, parts: Sequence[RankPart]) -> File:
    """`state.json`, with the digests of the parts."""
    proof = {
        "parameters_sha256": parts[0].parameters_sha256,
        "optimizer_sha256": [part.optimizer_sha256 for part in parts],
        "rng_sha256": [part.rng_sha256 for part in parts],
    }
    path = plan.directory.staging / checkpoint.name(plan.step) / "state.json"
    text = json.dumps({**lead.state, **proof}, indent=1, sort_keys=True) + "\n"
    with named_failures(path):
        done = tensor_file.write_chunks(path, [memoryview(text.encode())])
    return File(path=path.name, bytes=done.bytes, sha256=done.sha256)


def _path_of(file: File) -> str:
    return file.path


def digest(tensors: Sequence[Tensor], block: memoryview, do: Do) -> str:
    """SHA-256 over names, dtypes, shapes and bytes; equal to `snapshot.parameters_digest` of the same tensors."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(f"{tensor.name} {tensor.torch_dtype} {tensor.shape}\n".encode())
        for at in range(tensor.at, tensor.at + tensor.bytes, tensor_file.CHUNK_BYTES):
            do(partial(total.update, block[at : min(at + tensor_file.CHUNK_BYTES, tensor.at + tensor.bytes)]))
    return total.hexdigest()
