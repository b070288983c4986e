"""Annotators that an external program computes, such as a container or a job on a cluster with other libraries.

    work.json ──▶ program ──▶ one Parquet file per data file ──▶ checks ──▶ sidecar

The program reads Parquet files of documents. For each file it writes a Parquet file with the column `id` and the
annotator's columns, in the order of the documents. A sidecar has the same identity wherever it was computed: the name,
version and parameters of the annotator, and its inputs.
Does not belong here: the start of a program (`plinth_assets.framework.pipes`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from plinth import fingerprint
from plinth.corpus.annotate.base import Annotator, Files, annotator, parameters
from plinth.errors import StageError, WorkspaceError
from plinth.records import Frozen, Part
from plinth.storage import atomic
from plinth.storage.atomic import write_bytes
from plinth.storage.parts import iter_batches
from plinth.storage.store import Store

#: Maximum number of rows per call of an annotator.
BATCH_ROWS: Final = 1024
ID: Final = "id"
WORK: Final = "work.json"
_REMEDY: Final = "correct the program: it writes `id` and the annotator's columns, one row per document in their order"


class DataFile(NamedTuple):
    """Data file to annotate: paths of its documents and of the sidecars that the annotator reads, and of the output."""

    documents: Path
    sidecars: Mapping[str, Path]
    rows: int
    output: Path


def only_external(batch: pa.RecordBatch, params: Any) -> pa.RecordBatch:
    """Stand in for `Annotator.annotate` if only an external program can compute the columns.

    Raises:
        StageError: always.
    """
    raise StageError(
        "this annotator can run only in an external program",
        found="a run in this process",
        remedy="materialize its asset in a Dagster project that names a Pipes client for it (docs/dagster.md)",
    )


@contextmanager
def outputs(store: Store) -> Iterator[Path]:
    """Create a temporary folder for the files of a program, on the store's file system."""
    staging = store.root / "staging"
    staging.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="external-", dir=staging) as folder:
        yield Path(folder)


def write_work(
    folder: Path,
    chosen: Annotator,
    params: Frozen,
    libraries: Mapping[str, str],
    files: Sequence[DataFile],
    resources: Files,
) -> Path:
    """Write the description of the work, which is the only input of the program, and return its path."""
    described = {
        "annotator": chosen.name,
        "version": chosen.version,
        "params": params.model_dump(mode="json"),
        "libraries": dict(libraries),
        "reads": [*chosen.reads, *chosen.after],
        "columns": [{"name": one.name, "type": str(one.type), "nullable": one.nullable} for one in chosen.schema],
        "files": [
            {
                "documents": str(one.documents),
                "sidecars": {name: str(path) for name, path in one.sidecars.items()},
                "rows": one.rows,
                "output": str(one.output),
            }
            for one in files
        ],
        "resources": {key: {name: str(path) for name, path in named.items()} for key, named in resources.items()},
    }
    write_bytes(folder / WORK, fingerprint.canonical(described))
    return folder / WORK


def compute(work: Mapping[str, Any], done: Callable[[Mapping[str, Any]], None] = lambda file: None) -> None:
    """Annotate the files of a work description with the installed annotator: a program for environments with Plinth.

    Args:
        done: called with each finished file.

    Raises:
        StageError: the annotator has another version here.
        WorkspaceError: a library has another version here.
    """
    chosen = annotator(work["annotator"])
    require_version(chosen, work["version"])
    fingerprint.require_libraries(f"annotate/{chosen.name}", work["libraries"])
    prepared: Any = parameters(chosen.name, work["params"])
    if chosen.prepare:
        files = {key: {name: Path(path) for name, path in named.items()} for key, named in work["resources"].items()}
        prepared = chosen.prepare(prepared, files)
    schema = pa.schema([pa.field(ID, pa.binary(16)), *chosen.schema])
    for file in work["files"]:
        with pq.ParquetWriter(file["output"], schema) as writer:
            for batch in _batches(chosen, file):
                made = chosen.annotate(batch.select([*chosen.reads, *chosen.after]), prepared)
                columns = [batch.column(ID), *(made.column(name) for name in chosen.schema.names)]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        done(file)


def _batches(chosen: Annotator, file: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """Yield the documents of a file, with the columns of other sidecars that the annotator reads."""
    own = pq.ParquetFile(file["documents"]).iter_batches(BATCH_ROWS, columns=list({ID, *chosen.reads}))
    others = {
        name: pq.ParquetFile(path).iter_batches(BATCH_ROWS, columns=chosen.sidecars[name])
        for name, path in file["sidecars"].items()
    }
    for batch, *sides in zip(own, *others.values(), strict=True):
        for name, side in zip(others, sides, strict=True):
            for column in side.schema.names:
                batch = batch.append_column(f"{name}.{column}", side.column(column))
        yield batch


def require_version(chosen: Annotator, wanted: str) -> None:
    """Check that this process, possibly on another machine, has the version of the annotator's code that is part of the
    step's identity.

    Raises:
        StageError: it has another version.
    """
    if chosen.version != wanted:
        raise StageError(
            f"annotator {chosen.name} has another version in this worker",
            found=f"version {chosen.version}",
            expected=f"version {wanted}",
            remedy="install the same package on every machine, then run the command again",
        )


def written(store: Store, chosen: Annotator, documents: Part, path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows that a program wrote for a data file, with the annotator's schema, in batches of
    `BATCH_ROWS`.

    Raises:
        StageError: the file is missing or incomplete, or has other columns, types, rows or documents.
    """
    try:
        with _opened(chosen, documents, path) as source, pq.ParquetFile(source) as file:
            _require(chosen, documents, file)
            read = file.iter_batches(BATCH_ROWS, use_threads=False)
            for batch, (ids,) in zip(read, iter_batches(store, documents, [ID], BATCH_ROWS), strict=True):
                if not batch.column(ID).cast(pa.binary()).equals(ids.cast(pa.binary())):
                    raise _fault(chosen, documents, "ids of other documents, or in another order", "their ids in order")
                columns = [batch.column(name) for name in chosen.schema.names]
                yield pa.RecordBatch.from_arrays(columns, schema=chosen.schema)
    except (pa.ArrowException, OSError) as error:
        raise _fault(chosen, documents, f"no complete Parquet file: {error}", "a Parquet file") from error


def _opened(chosen: Annotator, documents: Part, path: Path) -> IO[bytes]:
    """Open a program's file. A link could lead to any file of this user, and opening a pipe could wait forever."""
    try:
        return atomic.opened(path)
    except WorkspaceError as error:
        raise _fault(chosen, documents, str(error.found), "a Parquet file") from error


def _require(chosen: Annotator, documents: Part, file: pq.ParquetFile) -> None:
    """Check columns, types and number of rows. Nulls are checked later, in the rows."""
    found, wanted = file.schema_arrow, {field.name: field.type for field in chosen.schema}
    named = sorted(found.names) == sorted([ID, *wanted])  # a list, because Parquet allows two columns with one name
    if not named or any(found.field(name).type != kind for name, kind in wanted.items()):
        columns = ", ".join(f"{field.name} ({field.type})" for field in found)
        expected = ", ".join([ID, *(f"{name} ({kind})" for name, kind in wanted.items())])
        raise _fault(chosen, documents, f"columns {columns}", f"columns {expected}")
    if file.metadata.num_rows != documents.rows:
        raise _fault(chosen, documents, f"{file.metadata.num_rows} rows", f"{documents.rows} rows")


def _fault(chosen: Annotator, documents: Part, found: str, expected: str) -> StageError:
    return StageError(
        f"the program of annotator {chosen.name} wrote an invalid file for {documents.name}",
        found=found,
        expected=expected,
        remedy=_REMEDY,
    )
