"""Files of tensors in the safetensors layout, written and hashed in one pass, without torch.

    8 bytes   length of the header, little endian
    header    JSON: tensor name -> dtype, shape, data_offsets; `__metadata__`: text -> text
    bytes     the tensors, one after another

The files contain only numbers and text, so reading them runs no code, unlike unpickling. The caller decides when each
piece of the work is done: at once, or in idle time.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

#: Bytes hashed and written at a time; small enough to stay in the cache between the two.
CHUNK_BYTES = 1 << 20


#: Names of dtypes in the format, by those of torch and NumPy.
DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip

#: Bytes of an element, by dtype of the format.
_ITEM_BYTES = {name: int("".join(filter(str.isdigit, name)) or 8) // 8 for name in DTYPES.values()}

#: Runs a piece of work.
Do = Callable[[Callable[[], object]], object]


def at_once(work: Callable[[], object]) -> None:
    """Run a piece of work immediately."""
    work()


class TensorEntry(NamedTuple):
    """Tensor of a file: safetensors dtype, shape, and its bytes."""

    dtype: str
    shape: Sequence[int]
    data: memoryview


class Written(NamedTuple):
    """Size and digest of a written file."""

    bytes: int
    digest: str


def write(
    path: Path, entries: Mapping[str, TensorEntry], metadata: Mapping[str, str], do: Do = at_once, digest: Any = None
) -> Written:
    """Write, hash and flush a file of tensors, in the order of `entries`; `digest` is an empty hash, or SHA-256.

    Raises:
        OSError: the file cannot be written.
    """
    start = header({name: (one.dtype, one.shape, one.data.nbytes) for name, one in entries.items()}, metadata)
    return write_chunks(path, [memoryview(start), *(entry.data for entry in entries.values())], do, digest)


def header(tensors: Mapping[str, tuple[str, Sequence[int], int]], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes before the tensors, from each tensor's dtype, shape and number of bytes."""
    described: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, (dtype, shape, size) in tensors.items():
        described[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


class TensorPlace(NamedTuple):
    """Place of a tensor in a file: dtype, shape, first byte, and end (exclusive)."""

    dtype: str
    shape: tuple[int, ...]
    at: int
    end: int


def places(path: Path) -> dict[str, TensorPlace]:
    """Return the places of the tensors in a file.

    Raises:
        OSError, ValueError, KeyError, TypeError: the file cannot be read, or has another format.
    """
    with path.open("rb") as stream:
        size, whole = int.from_bytes(stream.read(8), "little"), os.fstat(stream.fileno()).st_size
        return read_header(stream.read(min(size, whole)), whole)


def read_header(header: bytes, file_bytes: int) -> dict[str, TensorPlace]:
    """Return the places of the tensors in a header. Only unambiguous headers are accepted, so that all readers agree.

    Args:
        header: JSON, without the eight bytes of its length.

    Raises:
        ValueError, KeyError, TypeError: a name occurs twice; tensors overlap, leave a gap, are outside the file, or
            their length does not match shape and dtype.
    """
    described = json.loads(header, object_pairs_hook=_once)
    described.pop("__metadata__", None)
    at, found = 8 + len(header), {}
    for name, one in sorted(described.items(), key=lambda each: each[1]["data_offsets"]):
        begin, end = (8 + len(header) + offset for offset in one["data_offsets"])
        shape = tuple(one["shape"])
        size = math.prod(shape) * _ITEM_BYTES[one["dtype"]]
        if begin != at or end - begin != size or min(shape, default=0) < 0:
            raise ValueError(f"tensor {name} has bytes {begin} to {end}, expected {at} to {at + size}")
        found[name], at = TensorPlace(one["dtype"], shape, begin, end), end
    if at != file_bytes:
        raise ValueError(f"tensors end at byte {at} of {file_bytes}")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; refuse duplicate names."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} occurs twice")
        found[name] = value
    return found


def write_chunks(path: Path, pieces: Iterable[memoryview], do: Do = at_once, digest: Any = None) -> Written:
    """Write, hash and flush bytes, one piece after another."""
    path.parent.mkdir(parents=True, exist_ok=True)
    size, digest = 0, digest or hashlib.sha256()
    with path.open("wb", buffering=0) as stream:
        for piece in pieces:
            flat = piece.cast("B") if piece.nbytes else memoryview(b"")
            for at in range(0, flat.nbytes, CHUNK_BYTES):
                do(partial(_take, flat[at : at + CHUNK_BYTES], digest, stream))
            size += flat.nbytes
        do(partial(os.fsync, stream.fileno()))
    return Written(size, digest.hexdigest())


def _take(chunk: memoryview, digest: Any, stream: Any) -> None:
    digest.update(chunk)
    write_whole(stream, chunk)


def write_whole(stream: Any, chunk: memoryview) -> None:
    """Repeat the write until all bytes are written: a raw file may accept fewer than it is given."""
    done = stream.write(chunk)
    while done < chunk.nbytes:
        done += stream.write(chunk[done:])
