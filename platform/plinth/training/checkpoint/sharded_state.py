"""Layout-independent state: pieces of whole parameters, by name, in safetensors.

    rank-00000.safetensors      written by one rank, read by every rank that needs part of it
        layers.0.mlp.up_proj.weight/exp_avg/0.0.1/4096      parameter / kind / shard / first element
        layers.0.mlp.up_proj.weight/master/0.0.1/4096       FP32 master weights
    metadata of the file        JSON header with the shape of every shard in the file

ZeRO divides a flattened parameter into ranges; tensor parallelism first divides it along a dimension into shards;
pipeline parallelism assigns whole layers. Every number has one address (parameter, kind, shard, element), so a run in
any layout can read files that another layout wrote. Numbers are copied exactly, never recomputed, and nothing is
pickled.

A rank opens only its own file if that file has all the pieces that it needs. Otherwise it opens the files that the
index of pieces lists.

Does not belong here: the location of these numbers in an engine (universal).
"""

from __future__ import annotations

import json
import os
from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from plinth.errors import CheckpointError
from plinth.storage import tensor_file
from plinth.training.checkpoint.digest_tree import CHUNK_BYTES, RankManifest
from plinth.training.checkpoint.staging import FilledTensors, bytes_of

FORMAT = 1

#: State kind of the weights that the optimizer updates. The other kinds are its moments, by name.
MASTER = "master"


class Shard(NamedTuple):
    """Shard number `part` of a parameter that is divided along `dim` into `parts` shards, as by `torch.chunk`."""

    dim: int
    part: int
    parts: int

    def __str__(self) -> str:
        return ".".join(map(str, self))


WHOLE = Shard(0, 0, 1)


@dataclass(frozen=True)
class Share:
    """A rank's part of one parameter's state: a range of the flattened shard."""

    name: str
    shape: tuple[int, ...]  # shape of the shard
    shard: Shard
    start: int  # first element of the range
    state: Mapping[str, Tensor]  # kind -> [elements of the range], views of the engine's memory
    copy: bool = False  # another rank has and writes the same numbers
    experts: bool = False  # only some of the replicas have the same experts
    on_every_rank: bool = False  # every rank has and writes the same few numbers, so that each needs its own file only


class Piece(NamedTuple):
    """Range of a flattened shard: elements `first` to `end` of shard `part` of a parameter that is divided along `dim`
    into `parts` shards."""

    dim: int
    part: int
    parts: int
    first: int
    end: int


@dataclass(frozen=True)
class Captured:
    """One rank's contribution to a checkpoint: views of live memory until they are copied.

    Attributes:
        pieces: by parameter name, the range of the state that this rank has.
    """

    tensors: dict[str, Tensor]
    header: dict[str, Any]
    pieces: dict[str, Piece] = field(default_factory=dict)


def key_of(share: Share, kind: str, start: int) -> str:
    """Return the name of a piece in its file."""
    return f"{share.name}/{kind}/{share.shard}/{start}"


def file_name(rank: int) -> str:
    """Return the name of the file that a rank writes."""
    return f"rank-{rank:05d}.safetensors"


def metadata_of(captured: Captured) -> dict[str, str]:
    """Return the metadata for the header of a rank's safetensors file."""
    return {"plinth": json.dumps({"format": FORMAT, **captured.header}, sort_keys=True)}


def write(captured: Captured, folder: Path, rank: int) -> None:
    """Write the state file of one rank. If the tensors are on the CPU, any thread or process may call this."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in captured.tensors.items()}
    save_file(tensors, folder / file_name(rank), metadata=metadata_of(captured))


class ShardedState:
    """The pieces in some or all files of a checkpoint. Only requested pieces are read.

    If the target is host memory, a piece is read into it directly, without another copy.

    Args:
        stack: keeps the files open.
        folder: folder of the files.
        ranks: ranks whose files are opened.
        beat: called after each file and piece.
        files: files with any names, to open in place of the ranks' files.

    Raises:
        CheckpointError: no file exists, or a file has another format.
    """

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        ranks: Iterable[int] | None = None,
        beat: Callable[[], object] = int,
        files: Iterable[Path] | None = None,
    ) -> None:
        self.folder, self._beat = folder, beat
        self.header: dict[str, Any] = {}
        self._ranges: dict[tuple[str, str], dict[Shard, list[tuple[int, int, str]]]] = {}
        self._shapes: dict[tuple[str, Shard], tuple[int, ...]] = {}
        self._kinds: dict[str, set[str]] = {}
        self._piece: dict[str, _Piece] = {}
        every = sorted(folder.glob("rank-*.safetensors")) if ranks is None else [folder / file_name(r) for r in ranks]
        every = every if files is None else list(files)
        for path in every:
            self._index(stack, path)
            beat()
        if not every:
            raise CheckpointError(f"no engine state in {folder}", expected="files such as rank-00000.safetensors")

    def kinds_of(self, name: str) -> set[str]:
        """Return the kinds of state of one parameter: master weights, and the optimizer's moments by name."""
        return self._kinds.get(name, set())

    @property
    def names(self) -> set[str]:
        """Names of all parameters with state in the opened files."""
        return {name for name, _ in self._ranges}

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of a whole parameter."""
        shards = [(shard, shape) for (one, shard), shape in self._shapes.items() if one == name]
        dim = shards[0][0].dim
        sizes = list(shards[0][1])
        sizes[dim] = sum(shape[dim] for _, shape in shards)
        return tuple(sizes)

    def fill(self, target: Tensor, share: Share, kind: str, held: FilledTensors | None = None) -> None:
        """Copy one range of a parameter's state into `target` [elements], and add the copied bytes to the digest
        `held`.

        Raises:
            CheckpointError: some elements are missing.
        """
        if share.shard in self._ranges.get((share.name, kind), {}):
            self._copy(target, share.start, share.name, kind, share.shard, held)
            return
        whole = self.whole(share.name, kind)
        local = whole.chunk(share.shard.parts, share.shard.dim)[share.shard.part]
        target.copy_(local.reshape(-1)[share.start : share.start + target.numel()])
        if held is not None:
            held.filled(target.data_ptr(), target.numel() * target.element_size())

    def whole(self, name: str, kind: str) -> Tensor:
        """Return one whole parameter's state on the CPU, in the shape of the parameter.

        Raises:
            CheckpointError: part of the state is missing.
        """
        shards = sorted(self._ranges.get((name, kind), {}), key=lambda shard: shard.part)
        if not shards or [shard.part for shard in shards] != list(range(shards[0].parts)):
            raise CheckpointError(
                f"{self.folder} lacks {kind} of {name}",
                found=[str(shard) for shard in shards],
                expected="every shard of the parameter",
            )
        parts = []
        for shard in shards:
            part = torch.empty(self._shapes[name, shard], dtype=torch.float32)
            self._copy(part.view(-1), 0, name, kind, shard)
            parts.append(part)
        return torch.cat(parts, shards[0].dim) if len(parts) > 1 else parts[0]

    def _copy(
        self, target: Tensor, start: int, name: str, kind: str, shard: Shard, held: FilledTensors | None = None
    ) -> None:
        """Fill `target` with consecutive elements of a flattened shard, starting at element `start`."""
        done, stop = start, start + target.numel()
        for first, last, key in self._ranges[name, kind][shard]:
            end = min(last, stop)
            if first <= done < end:
                self._piece[key].read(target[done - start : end - start], done - first, held, self._beat)
                done = end
        if done != stop:
            raise CheckpointError(
                f"{self.folder} lacks {kind} of {name}",
                found=f"elements up to {done}",
                expected=f"up to {stop}",
                remedy="a rank's file is missing; an earlier committed checkpoint may be complete",
            )

    def _index(self, stack: ExitStack, path: Path) -> None:
        try:
            file = stack.enter_context(safe_open(path, framework="pt"))
            self.header = json.loads(file.metadata()["plinth"])
            stream, places = stack.enter_context(path.open("rb", buffering=0)), tensor_file.places(path)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path} is not a file with DeepSpeed engine state", found=error) from error
        if self.header["format"] != FORMAT:
            raise CheckpointError(f"{path} has another format", found=self.header["format"], expected=FORMAT)
        for group in self.header.get("groups", []):
            for name in group["names"]:
                self._kinds.setdefault(name, set()).update(group["kinds"])
        for key in file.keys():  # noqa: SIM118 - a handle, not a dictionary
            name, kind, text, start = key.split("/")
            shard = Shard(*map(int, text.split(".")))
            (size,) = file.get_slice(key).get_shape()
            self._kinds.setdefault(name, set()).add(kind)
            ranges = self._ranges.setdefault((name, kind), {}).setdefault(shard, [])
            insort(ranges, (int(start), int(start) + size, key))
            self._piece[key] = _Piece(key, file, stream, places[key])
            self._shapes[name, shard] = tuple(self.header["shapes"][name])


class _Piece(NamedTuple):
    """A piece of state in an open file."""

    key: str
    file: Any
    stream: FileIO
    place: tensor_file.TensorPlace

    def read(self, target: Tensor, first: int, held: FilledTensors | None, beat: Callable[[], object]) -> None:
        """Read elements of the piece into `target`, starting at element `first`. Host tensors are filled in place.

        Raises:
            CheckpointError: the file has become shorter.
        """
        address, size = target.data_ptr(), target.numel() * target.element_size()
        dtype = tensor_file.DTYPES[str(target.dtype).removeprefix("torch.")]
        if not (target.is_cpu and target.is_contiguous() and dtype == self.place.dtype):
            target.copy_(self.file.get_slice(self.key)[first : first + target.numel()])
            if held is not None:
                held.filled(address, size)
            beat()
            return
        data, at, done = bytes_of(target), self.place.at + first * target.element_size(), 0
        while done < size:
            read = os.preadv(self.stream.fileno(), [data[done : done + CHUNK_BYTES]], at + done)
            if not read:
                raise CheckpointError(f"{self.stream.name} ends in {self.key}", found=f"{at + done} bytes")
            if held is not None:
                held.filled(address + done, read)
            done += read
            beat()


# Index of the files that contain each piece of the state, so a rank opens only those it needs. No torch.
#
# The manifest of a rank lists its pieces: a range of the flattened shard of a parameter, the same for master weights
# and moments. If the layout differs from the writing one, each rank reads a share of the manifests, and the ranks
# exchange tables of fixed-size rows, 40 bytes per piece.

#: Row of the table. A parameter is identified by 64 bits of the BLAKE3 of its name.
_SMALL = [(name, "<i4") for name in ("dim", "part", "parts", "rank")]
ROW = np.dtype([("name", "<u8"), *_SMALL, ("first", "<i8"), ("end", "<i8")])

Table = npt.NDArray[Any]


def covers(held: Mapping[str, tuple[int, int, int, int, int]], wanted: Mapping[str, Piece]) -> bool:
    """Return True if one rank's pieces (`held`) contain all wanted pieces."""
    return all(name in held and _within(Piece(*held[name]), want) for name, want in wanted.items())


def table_of(manifests: Iterable[RankManifest]) -> Table:
    """Return a table with one row per piece of state in the given ranks' manifests."""
    tables = [np.zeros(0, ROW)]
    keys: dict[str, int] = {}
    for manifest in manifests:
        rows = np.empty(len(manifest.pieces), ROW)
        rows["name"] = [keys.get(name) or keys.setdefault(name, _key(name)) for name in manifest.pieces]
        numbers = np.array(list(manifest.pieces.values()), np.int64).reshape(-1, len(Piece._fields))
        for column, part in enumerate(Piece._fields):
            rows[part] = numbers[:, column]
        rows["rank"] = manifest.rank
        tables.append(rows)
    return np.concatenate(tables)


def ranks_for(table: Table, wanted: Mapping[str, Piece]) -> list[int]:
    """Return the ranks whose files contain any of the wanted pieces, in order.

    If no rank wrote the wanted shard of a parameter, all pieces of the whole parameter are needed.
    """
    ordered = table[np.argsort(table["name"], kind="stable")]
    found: set[int] = set()
    for name, want in wanted.items():
        key = np.uint64(_key(name))
        rows = ordered[np.searchsorted(ordered["name"], key) : np.searchsorted(ordered["name"], key, "right")]
        same = rows[(rows["dim"] == want.dim) & (rows["part"] == want.part) & (rows["parts"] == want.parts)]
        if len(same):
            rows = same[(same["first"] < want.end) & (same["end"] > want.first)]
            rows = rows[np.unique(rows[["first", "end"]], return_index=True)[1]]  # one of several equal pieces
        found.update(rows["rank"].tolist())
    return sorted(found)


def _within(piece: Piece, want: Piece) -> bool:
    return piece[:3] == want[:3] and piece.first <= want.first and want.end <= piece.end


def _key(name: str) -> int:
    return int.from_bytes(blake3(name.encode()).digest()[:8], "little")
