"""Parts of a manifest as an Arrow dataset: read-only and lazy, each file verified when it is first opened."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs
import pyarrow.parquet as pq

from plinth.errors import MissingError
from plinth.records import Part
from plinth.storage.store import Store


class _VerifiedFiles(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Read-only file system with the blobs of a list of parts, by part name."""

    protocol = "plinth"
    cachable = False

    def __init__(self, store: Store, parts: Iterable[Part]) -> None:
        super().__init__()
        self._store, self._blobs = store, {part.name: part.blob for part in parts}

    def __reduce__(self) -> tuple[Any, ...]:
        parts = tuple(Part(name=name, blob=blob, rows=0) for name, blob in self._blobs.items())
        return type(self), (self._store, parts)

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        if path not in self._blobs:
            raise FileNotFoundError(path)
        return {"name": path, "size": self._blobs[path].bytes, "type": "file"}

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> BinaryIO:
        if mode != "rb":
            raise io.UnsupportedOperation(f"{path} is read-only")
        return self._store.open_path(self._blobs[path]).open("rb")


def parquet_dataset(store: Store, parts: Sequence[Part], schema: pa.Schema | None = None) -> ds.Dataset:
    """Return the rows of Parquet parts as a dataset, in the order of the parts.

    No part is opened before it is scanned, except the first one if no schema is given. The SHA-256 of a part is
    compared when this machine first opens it.

    Args:
        schema: schema of all parts; by default, the schema of the first part.

    Raises:
        MissingError: there are no parts and no schema, or the first part is missing.
        IntegrityError: the first part differs from its record. A scan raises both as Arrow errors.
    """
    if schema is None:
        if not parts:
            raise MissingError("there are no rows to read, and their columns are unknown")
        schema = pq.read_schema(store.open_path(parts[0].blob))
    files = fs.PyFileSystem(fs.FSSpecHandler(_VerifiedFiles(store, parts)))
    kind = ds.ParquetFileFormat()
    fragments = [kind.make_fragment(part.name, filesystem=files) for part in parts]
    return ds.FileSystemDataset(fragments, schema, kind, files)
