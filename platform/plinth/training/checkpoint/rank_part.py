"""One rank's part of a checkpoint, which is written from memory, and the commit after all ranks have written.

    staging/step-00000100/            the files of all ranks; ranks/rank-00000.json lists one rank's files with digests
    staging/step-00000100.parts/      rank-00000.json: digests of that list and of the engine's state

A part is described by a `WritePlan`, plain JSON over one block of memory, so that the same function writes it in the
rank itself (`mode: sync`) or in another process (`mode: async`), without torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from blake3 import blake3

from plinth import fingerprint
from plinth.errors import PlinthError
from plinth.records import Frozen
from plinth.storage import tensor_file
from plinth.storage.atomic import named_failures, write_bytes
from plinth.storage.tensor_file import Do, at_once
from plinth.training.checkpoint import checkpoint, digest_tree, selection
from plinth.training.checkpoint.commit_record import Commit
from plinth.training.checkpoint.digest_tree import File, RankFiles, RankManifest, hasher_of, made
from plinth.training.checkpoint.shares import SharedCheckpoint
from plinth.training.directory import RunDirectory
from plinth.training.parameters.run import Checkpoints
from plinth.training.telemetry.timeline import Timeline


class Tensor(Frozen):
    """Position of a tensor in the memory block, its shape, and its dtype as safetensors and torch name it."""

    name: str
    dtype: str
    torch_dtype: str
    shape: tuple[int, ...]
    at: int
    bytes: int


class TensorsFile(Frozen):
    """A file in safetensors format and its tensors, in file order."""

    path: str
    metadata: Mapping[str, str]
    tensors: tuple[Tensor, ...]


class Lead(Frozen):
    """Data that only the leading rank's writer needs, because it commits the checkpoint."""

    ranks: int
    state: Mapping[str, Any]  # content of `state.json`, without digests
    texts: Mapping[str, str] = {}  # other files of the run, by path
    checkpoints: Checkpoints
    always: tuple[int, ...]  # steps that retention keeps


class SharedSave(Frozen):
    """Save in a shared workspace: its number, the supervisor's session, and the ranks of this machine."""

    number: str
    session: str
    first: int  # rank of this machine
    ranks: int  # of this machine

    def adopts(self, plan: WritePlan) -> bool:
        """Return True if this rank's writer commits the save on its machine, which is not that of the leading rank."""
        return plan.rank == self.first and plan.lead is None

    def is_here(self, rank: int) -> bool:
        """Return True if a rank is on this machine."""
        return self.first <= rank < self.first + self.ranks

    def of(self, plan: WritePlan) -> SharedCheckpoint:
        """Return the checkpoint in the bucket."""
        return _save(plan.run, self.session, plan.step, self.number)


@lru_cache(maxsize=1)
def _save(run: str, session: str, step: int, number: str) -> SharedCheckpoint:
    """Return a save in the bucket. Its connections are kept while the leading rank waits for parts."""
    return SharedCheckpoint(RunDirectory(run), session, step, number)


class WritePlan(Frozen):
    """The files that one rank writes for one checkpoint."""

    run: str  # the run's directory
    step: int
    rank: int
    mode: str
    tensor_files: tuple[TensorsFile, ...]
    texts: Mapping[str, str]
    pieces: Mapping[str, tuple[int, int, int, int, int]] = {}  # pieces of the state by parameter
    parameters: tuple[Tensor, ...] = ()  # whole parameters of this rank's share of the model
    optimizer: tuple[Tensor, ...]
    rng_sha256: str
    lead: Lead | None = None
    shared: SharedSave | None = None

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.run)


class RankPart(Frozen):
    """Report from a rank's writer to the leading writer: the digests of its file list and of its engine's state."""

    files: RankFiles
    parameters: Mapping[str, str]  # `tensor_line` of each parameter of its share
    optimizer_sha256: str
    rng_sha256: str


def parts_folder(run: RunDirectory, step: int) -> Path:
    """Return the folder in which each rank reports its part of a checkpoint."""
    return run.staging / f"{checkpoint.name(step)}.parts"


def part_path(run: RunDirectory, step: int, rank: int) -> Path:
    """Return the path of a rank's report on its part."""
    return parts_folder(run, step) / f"rank-{rank:05d}.json"


def write(plan: WritePlan, block: memoryview, do: Do = at_once) -> RankPart:
    """Write and flush the files of a rank, then its report. `do` runs most of the work in small pieces.

    Raises:
        DiskFullError, WorkspaceError, StorageError: the operating system reported an error.
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
            done = tensor_file.write(folder / one.path, entries, one.metadata, do, hasher_of(one.path))
            files.append(made(one.path, done.bytes, done.digest))
        files += [_write_text(folder, name, text) for name, text in plan.texts.items()]
        files = sorted(files, key=_path_of)
        listed = digest_tree.manifest_bytes(RankManifest(rank=plan.rank, files=tuple(files), pieces=plan.pieces))
        stated = _write_text(folder, digest_tree.manifest_path(plan.rank), listed)
    part = RankPart(
        files=RankFiles(
            rank=plan.rank,
            bytes=stated.bytes,
            sha256=stated.digest,
            files=len(files),
            file_bytes=sum(file.bytes for file in files),
            model=digest_tree.of_model(files),
        ),
        parameters={tensor.name: line(tensor, block, do) for tensor in plan.parameters},
        optimizer_sha256=digest_of_lines(line(tensor, block, do) for tensor in plan.optimizer),
        rng_sha256=plan.rng_sha256,
    )
    report = fingerprint.canonical(part)
    if plan.shared is not None:
        plan.shared.of(plan).put_part(plan.rank, [*files, part.files.manifest], report)
    write_bytes(part_path(plan.directory, plan.step, plan.rank), report)
    return part


class Timing(NamedTuple):
    """Times of a save: its start (`time.monotonic`), the seconds that it stalled training, and the seconds that it
    waited for the previous save."""

    begun: float
    stall_s: float
    wait_s: float


def missing(plan: WritePlan, lead: Lead) -> list[int]:
    """Return the ranks that have not written their part yet. If there are none, the checkpoint can be committed."""
    _gather(plan, lead)
    ranks = range(lead.ranks)
    return [rank for rank in ranks if not part_path(plan.directory, plan.step, rank).exists()]


def _gather(plan: WritePlan, lead: Lead) -> None:
    """Copy the reports of ranks on other machines to this machine."""
    if plan.shared is not None and plan.shared.ranks < lead.ranks:
        plan.shared.of(plan).gather(parts_folder(plan.directory, plan.step))


def commit(plan: WritePlan, lead: Lead, timing: Timing) -> Commit:
    """Commit the parts of all ranks, log the commit on the timeline, and apply the retention policy.

    Raises:
        DiskFullError, WorkspaceError, StorageError, CheckpointError, SignatureError: nothing was committed.
    """
    run, step = plan.directory, plan.step
    _gather(plan, lead)
    ranks = range(lead.ranks)
    parts = [RankPart.model_validate_json(part_path(run, step, rank).read_bytes()) for rank in ranks]
    folder = run.staging / checkpoint.name(step)
    with named_failures(folder):
        texts = {checkpoint.STATE: _state_text(lead, parts), **lead.texts}
        files = [_write_text(folder, name, text) for name, text in texts.items()]
    publish = plan.shared.of(plan).publish if plan.shared is not None else None
    record = checkpoint.commit(run, step, files, [part.files for part in parts], publish)
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
    removed = selection.retain(run, lead.checkpoints, set(lead.always))
    if plan.shared is not None:
        with contextlib.suppress(PlinthError):  # the next commit deletes what is left
            plan.shared.of(plan).retire(removed)
    if removed:
        events.append("retired", steps=removed, reason="retention")
    return record


def _state_text(lead: Lead, parts: Sequence[RankPart]) -> str:
    """Return the content of `state.json`, with the digests that all ranks reported."""
    lines = {name: line for part in parts for name, line in part.parameters.items()}
    proof = {
        "parameters_sha256": digest_of_lines(lines[name] for name in sorted(lines)),
        "optimizer_sha256": [part.optimizer_sha256 for part in parts],
        "rng_sha256": [part.rng_sha256 for part in parts],
    }
    return json.dumps({**lead.state, **proof}, indent=1, sort_keys=True) + "\n"


def _write_text(folder: Path, name: str, text: str | bytes) -> File:
    data = text if isinstance(text, bytes) else text.encode()
    done = tensor_file.write_chunks(folder / name, [memoryview(data)], digest=hasher_of(name))
    return made(name, done.bytes, done.digest)


def _path_of(file: File) -> str:
    return file.path


def line(tensor: Tensor, block: memoryview, do: Do = at_once) -> str:
    """Return the digest line (`tensor_line`) of a tensor in the memory block."""
    digest, end = blake3(), tensor.at + tensor.bytes
    for at in range(tensor.at, end, tensor_file.CHUNK_BYTES):
        do(partial(digest.update, block[at : min(at + tensor_file.CHUNK_BYTES, end)]))
    return tensor_line(tensor.name, tensor.torch_dtype, tensor.shape, digest.hexdigest())


def tensor_line(name: str, dtype: str, shape: Sequence[int], digest: str) -> str:
    """Return one tensor's line for a digest over many tensors: name, dtype, shape, and the BLAKE3 of its bytes."""
    return f"{name} {dtype} {tuple(shape)} {digest}\n"


def digest_of_lines(lines: Iterable[str]) -> str:
    """Return one SHA-256 over the digest lines of several tensors, in order."""
    total = hashlib.sha256()
    for line in lines:
        total.update(line.encode())
    return total.hexdigest()
