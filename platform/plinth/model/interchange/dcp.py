"""Tensors of a folder that `torch.distributed.checkpoint` (DCP) or a trainer with its format wrote, without torch.

    .metadata       pickle: shape and type of each tensor, the boxes (chunks) that it is divided into, their files
    __0_0.distcp    one `torch.save` archive per chunk, one after another

Both kinds of pickle are read as inert records (`pickled`). A chunk's numbers are then read from the mapped file in
place, so the memory in use is at most the requested rows of one tensor. Values keep their bits: a tensor is an array of
unsigned integers of its element size, with the name of its type next to it.

Python objects of a checkpoint (`BytesStorageMetadata`) are listed by name and never read.
"""

from __future__ import annotations

import hashlib
import io
import math
import mmap
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plinth.errors import CheckpointError
from plinth.model.interchange import pickled
from plinth.storage.atomic import relative

METADATA = ".metadata"

#: Maximum bytes of `.metadata`; a model with a hundred thousand chunks has about 30 MB.
MOST_METADATA_BYTES = 1 << 28

#: Maximum bytes of the pickle in a chunk's archive. It describes one tensor.
MOST_PICKLE_BYTES = 1 << 16

#: Unsigned integer type with the bits of each supported type.
BITS = {"float64": "<u8", "float32": "<u4", "bfloat16": "<u2", "float16": "<u2"}

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "BFloat16Storage": "bfloat16",
    "HalfStorage": "float16",
}

#: Fixed part of a file's header in an archive: its name and extra field follow, with the lengths of the last two.
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")

#: Errors of reading values that have another form than expected.
_BROKEN = (ValueError, KeyError, TypeError, AttributeError, IndexError, zipfile.BadZipFile, struct.error)

Bits = NDArray[np.unsignedinteger]


class Chunk(NamedTuple):
    """Box of a tensor: its first index on each axis, its shape, and its place in a file."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    at: int
    length: int


class DcpTensor(NamedTuple):
    """Tensor of a DCP folder: shape, name of the type, and chunks in the order of their offsets."""

    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[Chunk, ...]

    @property
    def row_elements(self) -> int:
        """Number of elements of one index of the first axis."""
        return math.prod(self.shape[1:])


class DcpFolder:
    """Tensors of a DCP folder, as a context manager. Chunks must cover each tensor exactly.

    Args:
        folder: folder with `.metadata`.
        opened: opens a file of the folder by name; pass a function that refuses links out of the folder.

    Raises:
        CheckpointError: `.metadata` is absent, broken, too large or names other code, or its chunks do not fit.
    """

    def __init__(self, folder: Path, opened: Callable[[str], IO[bytes]] | None = None) -> None:
        self.folder = folder
        self._opened = opened or (lambda name: (folder / name).open("rb"))
        self._maps: dict[str, mmap.mmap] = {}
        self._rows = lru_cache(maxsize=1)(self._assembled)
        try:
            with self._opened(METADATA) as stream:
                content = stream.read(MOST_METADATA_BYTES + 1)
            if len(content) > MOST_METADATA_BYTES:
                raise ValueError(f"{METADATA} has more than {MOST_METADATA_BYTES:,} bytes")
            self.tensors = _tensors(pickled.read(io.BytesIO(content)))
        except (OSError, *_BROKEN) as error:
            raise self._broken(error) from error
        self._metadata_sha256 = hashlib.sha256(content).hexdigest()

    def __enter__(self) -> DcpFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self._rows.cache_clear()
        self._maps.clear()

    def digests(self, names: Iterable[str]) -> dict[str, str]:
        """Return the SHA-256 of `.metadata` and of each file that has chunks of these tensors, by file name."""
        files = sorted({chunk.file for name in names for chunk in self.tensors[name].chunks})
        return {METADATA: self._metadata_sha256} | {name: hashlib.sha256(self._map(name)).hexdigest() for name in files}

    def flat(self, name: str, first: int, count: int) -> Bits:
        """Return `count` elements of a tensor in row-major order, beginning at element `first`.

        Raises:
            CheckpointError: a chunk's archive is broken, or differs from the metadata.
        """
        width = self.tensors[name].row_elements
        row, stop = first // width, -(-(first + count) // width)
        return self._rows(name, row, stop).reshape(-1)[first - row * width :][:count]

    def _assembled(self, name: str, first: int, stop: int) -> Bits:
        """Return rows `first` to `stop` of a tensor; a view of the mapped file if one chunk has them all."""
        tensor = self.tensors[name]
        found = [one for one in tensor.chunks if one.offsets[0] < stop and one.offsets[0] + one.shape[0] > first]
        if len(found) == 1:
            start = found[0].offsets[0]
            return self._chunk(name, tensor, found[0])[first - start : stop - start]
        rows = np.empty((stop - first, *tensor.shape[1:]), BITS[tensor.dtype])
        for one in found:
            low, high = max(first, one.offsets[0]), min(stop, one.offsets[0] + one.shape[0])
            place = (slice(low - first, high - first), *map(_span, one.offsets[1:], one.shape[1:]))
            rows[place] = self._chunk(name, tensor, one)[low - one.offsets[0] : high - one.offsets[0]]
        return rows

    def _chunk(self, name: str, tensor: DcpTensor, chunk: Chunk) -> Bits:
        try:
            data = self._map(chunk.file)
            if chunk.at + chunk.length > len(data):
                raise ValueError(f"{chunk.file} has {len(data)} bytes, and the chunk ends at {chunk.at + chunk.length}")
            return _archived(memoryview(data)[chunk.at : chunk.at + chunk.length], chunk.shape, tensor.dtype)
        except (OSError, *_BROKEN) as error:
            raise self._broken(f"{name} at {chunk.offsets} in {chunk.file}: {error}") from error

    def _map(self, name: str) -> mmap.mmap:
        if name not in self._maps:
            with self._opened(name) as stream:
                self._maps[name] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[name]

    def _broken(self, error: object) -> CheckpointError:
        return CheckpointError(
            f"{self.folder} is not a readable DCP folder",
            found=error,
            expected=f"a folder of torch.distributed.checkpoint: {METADATA} and the *.distcp files that it names",
        )


def _span(offset: int, size: int) -> slice:
    return slice(offset, offset + size)


# The metadata: every value is checked, because the file may come from anywhere.


def _tensors(metadata: Any) -> dict[str, DcpTensor]:
    """Return the tensors that a metadata record describes, by name.

    Raises:
        ValueError: a field is missing or has another type, or the chunks of a tensor do not cover it exactly.
    """
    if not isinstance(metadata, pickled.InertRecord) or metadata.of != "Metadata":
        raise ValueError("the pickle is not the Metadata of torch.distributed.checkpoint")
    described, stored = metadata.field("state_dict_metadata"), metadata.field("storage_data")
    if not isinstance(described, dict) or not isinstance(stored, dict):
        raise ValueError("the metadata has no tensors or no places")
    places = {}
    for index, info in stored.items():
        offset = index.field("offset")
        places[str(index.field("fqn")), None if offset is None else _sizes(offset)] = info
    tensors = {}
    for name, one in described.items():
        if isinstance(one, pickled.InertRecord) and one.of == "TensorStorageMetadata":
            tensors[str(name)] = _tensor(str(name), one, places)
    return tensors


def _tensor(name: str, described: pickled.InertRecord, places: Mapping[Any, Any]) -> DcpTensor:
    properties = described.field("properties")
    dtype = getattr(properties.state[0], "of", "") if properties.state else ""
    if dtype not in BITS:
        return DcpTensor(_sizes(described.field("size")), dtype, ())  # not weights; refused if it is wanted
    chunks = []
    for box in described.field("chunks"):
        offsets, shape = _sizes(box.field("offsets")), _sizes(box.field("sizes"))
        info = places.get((name, offsets))
        if info is None:
            raise ValueError(f"the chunk of {name} at {offsets} has no file")
        if info.field("transform_descriptors"):
            raise ValueError(f"{name} is compressed or transformed: {info.field('transform_descriptors')}")
        at, length = info.field("offset"), info.field("length")
        _require(name, isinstance(at, int) and isinstance(length, int) and at >= 0 and length >= 0, "place")
        file = str(relative(str(info.field("relative_path")), METADATA, error=CheckpointError))
        _require(name, "/" not in file, f"file {file}")
        chunks.append(Chunk(offsets, shape, file, at, length))
    shape = _sizes(described.field("size"))
    chunks.sort(key=lambda one: one.offsets)
    _require_cover(name, shape, chunks)
    return DcpTensor(shape, dtype, tuple(chunks))


def _sizes(size: Any) -> tuple[int, ...]:
    """Return the numbers of a `torch.Size` record."""
    numbers = tuple(size.args[0]) if isinstance(size, pickled.InertRecord) and size.args else size
    if not isinstance(numbers, tuple) or not all(type(one) is int and 0 <= one < 1 << 48 for one in numbers):
        raise ValueError(f"{size!r} is not a shape")
    return numbers


def _require(name: str, holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{name} has an invalid {what}")


def _require_cover(name: str, shape: tuple[int, ...], chunks: list[Chunk]) -> None:
    """Check that chunks cover a tensor exactly: inside it, disjoint, and of its size.

    Overlaps are searched along the axis with the most offsets, so that rows or columns take one comparison each.
    """
    for one in chunks:
        fits = len(one.offsets) == len(one.shape) == len(shape)
        ends = (offset + size <= whole for offset, size, whole in zip(one.offsets, one.shape, shape, strict=False))
        _require(name, fits and all(ends), f"chunk at {one.offsets} of shape {one.shape} in shape {shape}")
    _require(name, sum(math.prod(one.shape) for one in chunks) == math.prod(shape), "total size of its chunks")
    if not shape:
        return
    axis = max(range(len(shape)), key=lambda number: len({one.offsets[number] for one in chunks}))
    open_boxes: list[Chunk] = []
    for one in sorted(chunks, key=lambda one: one.offsets[axis]):
        open_boxes = [other for other in open_boxes if other.offsets[axis] + other.shape[axis] > one.offsets[axis]]
        for other in open_boxes:
            _require(name, not _overlap(one, other), f"chunk at {one.offsets}, which overlaps {other.offsets}")
        open_boxes.append(one)


def _overlap(one: Chunk, other: Chunk) -> bool:
    pairs = zip(one.offsets, one.shape, other.offsets, other.shape, strict=True)
    return all(a < b + other_size and b < a + size for a, size, b, other_size in pairs)


# A chunk: the archive of one tensor, as `torch.save` writes it.


def _archived(data: memoryview, shape: tuple[int, ...], dtype: str) -> Bits:
    """Return the tensor in an archive as a view of its bytes.

    Raises:
        ValueError: the archive is compressed, has another byte order, or has a tensor of another shape or type.
    """
    with zipfile.ZipFile(_Window(data)) as archive:
        files = {one.filename.partition("/")[2]: one for one in archive.infolist()}
        if "data.pkl" not in files or files["data.pkl"].file_size > MOST_PICKLE_BYTES:
            raise ValueError("no description of a tensor")
        if "byteorder" in files and bytes(_stored(data, files["byteorder"])) != b"little":
            raise ValueError("the tensor is not in little-endian order")
        rebuilt = pickled.read(io.BytesIO(_stored(data, files["data.pkl"])), lambda key: key)
        while isinstance(rebuilt, pickled.InertRecord) and rebuilt.of == "_rebuild_parameter":
            rebuilt = rebuilt.args[0]
        if not isinstance(rebuilt, pickled.InertRecord) or rebuilt.of != "_rebuild_tensor_v2" or len(rebuilt.args) < 4:
            raise ValueError("no plain tensor")
        storage, first, size, strides = rebuilt.args[:4]
        kind = _STORAGES.get(getattr(storage[1], "of", ""))
        if (_sizes(size), kind) != (shape, dtype):
            raise ValueError(f"a tensor of shape {size} and type {kind}, expected {shape} and {dtype}")
        values = _stored(data, files[f"data/{storage[2]}"])
    bits = np.dtype(BITS[dtype])
    steps = tuple(step * bits.itemsize for step in _sizes(strides))
    return np.ndarray(shape, bits, values, _sizes((first,))[0] * bits.itemsize, steps)


def _stored(data: memoryview, file: zipfile.ZipInfo) -> memoryview:
    """Return the bytes of an uncompressed file in an archive."""
    header = _LOCAL_HEADER.unpack_from(data, file.header_offset)
    first = file.header_offset + _LOCAL_HEADER.size + header[-2] + header[-1]
    if file.compress_type != zipfile.ZIP_STORED or first + file.file_size > len(data):
        raise ValueError(f"{file.filename} is compressed or cut off")
    return data[first : first + file.file_size]


class _Window(io.RawIOBase):
    """Bytes in memory as a file, without a copy."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        piece = self._data[self._at : self._at + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)
