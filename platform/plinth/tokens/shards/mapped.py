"""Arrow files of one record batch that are mapped and read in place: any row of any column in constant time.

The writer records where in the file each column begins, so a reader maps the file and parses nothing: opening takes
microseconds, whatever the size. Other programs read a plain Arrow file (`pyarrow.ipc.open_file`, Polars).

A mapping holds no file descriptor. Python's own `mmap` (and with it `numpy.memmap`) keeps one open for each, and a run
over 10^12 tokens maps some 15,000 shards, where a process may often open 1,024 files.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plinth.errors import IntegrityError
from plinth.records import Part
from plinth.storage.atomic import named_failures
from plinth.storage.store import Store

#: Key of a part's statistics: byte of the file at which each buffer of its columns begins.
AT = "at"
_MAGIC = b"ARROW1"
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class _Mapping:
    """A file mapped into memory until nothing refers to its bytes."""

    def __init__(self, path: Path | str) -> None:
        self.address = 0
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size = os.fstat(file).st_size
            address = _libc.mmap(None, self.size, mmap.PROT_READ, mmap.MAP_SHARED, file, 0) if self.size else 0
        finally:
            os.close(file)
        if address == _FAILED:
            raise OSError(ctypes.get_errno(), f"cannot map {path}")
        self.address = address

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": (self.size,), "typestr": "|u1", "data": (self.address, True)}

    def __del__(self) -> None:
        if self.address:
            _libc.munmap(self.address, self.size)


def map_file(path: Path | str) -> NDArray[np.uint8]:
    """The bytes of a file, read only, without holding it open.

    Raises:
        OSError: it cannot be opened or mapped.
    """
    mapping = _Mapping(path)
    return np.asarray(mapping) if mapping.size else np.empty(0, np.uint8)


def write_mapped(store: Store, name: str, batch: pa.RecordBatch, stats: dict[str, Any]) -> Part:
    """Write a batch without nulls as an uncompressed Arrow file; `stats["at"]` has the first byte of each buffer.

    Raises:
        DiskFullError, WorkspaceError: nothing becomes visible.
    """
    with store.staging(".arrow") as path:
        with named_failures(path):
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
                writer.write_batch(batch)
            data = map_file(path)
            written = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(data))).get_batch(0)
        buffers = [buffer for column in written.columns if batch.num_rows for buffer in column.buffers() if buffer]
        at = [buffer.address - data.ctypes.data for buffer in buffers]
        return Part(name=name, blob=store.put_file(path), rows=batch.num_rows, stats={**stats, AT: at})


def map_columns(store: Store, part: Part, what: str) -> tuple[NDArray[np.uint8], list[int]]:
    """The bytes of a part that `write_mapped` wrote, and where its buffers begin.

    Raises:
        MissingError, IntegrityError: absent, torn, or not such a file.
    """
    path = store.open_path(part.blob)
    try:
        data = map_file(path)
    except OSError as error:
        raise IntegrityError(f"{path} ({part.name}) cannot be mapped", found=error) from error
    if data[: len(_MAGIC)].tobytes() != _MAGIC:
        raise _unknown(f"{path} ({part.name})", part, what)
    return data, places_of(part, what)


def places_of(part: Part, what: str) -> list[int]:
    """Where in its file the buffers of a part begin.

    Raises:
        IntegrityError: it was not written by `write_mapped`.
    """
    if AT not in part.stats:
        raise _unknown(part.name, part, what)
    return list(part.stats[AT])


def _unknown(name: str, part: Part, what: str) -> IntegrityError:
    return IntegrityError(
        f"{name} is not {what}",
        expected=f"an Arrow file of {part.rows} rows, written by this version",
        remedy="run the stage that made it again; its format has changed",
    )
