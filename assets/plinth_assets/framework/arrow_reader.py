"""Dagster I/O manager: a user's downstream asset reads the rows of a Plinth asset, as a `pyarrow.dataset.Dataset` or,
for token shards, as a `pyarrow.RecordBatchReader`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg
import numpy as np
import pyarrow as pa
from pydantic import Field

from plinth.compute.context import Context
from plinth.errors import MissingError, RequestError
from plinth.records import Manifest
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace
from plinth.tokens.shards.parameters import streams_of
from plinth.tokens.shards.reader import open_streams
from plinth_assets.framework.placement import DagsterPlacement

if TYPE_CHECKING:
    import pyarrow.dataset as ds  # imports pandas, which no run needs

SHARDS = "shards"


class ArrowReader(dg.ConfigurableIOManager):
    """I/O manager that reads the published version of a Plinth asset; it cannot write.

    The data version that Dagster records for the input is the manifest digest, so a downstream asset is stale after
    each change of the content.

        @dg.asset(ins={"text": dg.AssetIn(["web", "curated"])})
        def word_counts(text: pyarrow.dataset.Dataset): ...
    """

    workspace: str
    key_prefix: list[str] = Field(default_factory=list)

    def load_input(self, context: dg.InputContext) -> ds.Dataset | pa.RecordBatchReader:
        """Return the rows of the upstream asset; see `rows_of`.

        Raises:
            MissingError: it was never materialized, or has no Parquet rows.
            IntegrityError: a file differs from its record.
        """
        ctx = Context(Workspace(self.workspace))
        manifest = ctx.refs.current(DagsterPlacement.of(self.key_prefix).asset(context.asset_key))
        context.add_input_metadata({"manifest": manifest.digest, "rows": manifest.rows})
        return rows_of(ctx.store, manifest)

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Refuse to write: stages publish their own manifests.

        Raises:
            RequestError: always.
        """
        raise RequestError(
            f"{context.asset_key.to_user_string()} cannot be written through `plinth_reader`",
            found="an asset of this project with io_manager_key plinth_reader",
            expected="the project's own I/O manager",
            remedy="remove `io_manager_key` from the definition of this asset; `plinth_reader` can only read",
        )


def rows_of(store: Store, manifest: Manifest) -> ds.Dataset | pa.RecordBatchReader:
    """Return the rows of a published asset.

    Token shards: a reader with one row per document (`stream`, `id`, `tokens`), which reads a batch at a time and only
    once. An `InMemoryDataset` of it would hold all tokens in memory. Other assets: see `dataset`.

    Raises:
        MissingError: the asset has no rows to read.
    """
    return _documents(store, manifest) if manifest.asset.endswith(f"/{SHARDS}") else dataset(store, manifest)


def dataset(store: Store, manifest: Manifest) -> ds.Dataset:
    """Return the Parquet parts `part-*` of a published asset, which can be scanned any number of times. Documents,
    curated text, sidecars and the ledger have such parts.

    Raises:
        MissingError: the asset has no such parts.
    """
    from plinth.storage.arrow_datasets import parquet_dataset

    parts = [
        part
        for part in manifest.parts
        if part.name.endswith(".parquet") and part.name.rpartition("/")[2].startswith("part-")
    ]
    if not parts:
        raise MissingError(
            f"asset {manifest.asset} has no rows to read",
            found=", ".join(part.name for part in manifest.parts[:5]) or "no parts",
            expected="Parquet parts, as documents, curated text, sidecars and the ledger have, or token shards",
        )
    return parquet_dataset(store, parts)


def _documents(store: Store, manifest: Manifest) -> pa.RecordBatchReader:
    readers = open_streams(store, [manifest])
    kind = pa.from_numpy_dtype(np.dtype(manifest.stats["dtype"]))
    names = [stream.name for stream in streams_of(manifest)]
    schema = pa.schema([("stream", pa.string()), ("id", pa.binary(16)), ("tokens", pa.large_list(kind))])

    def batches() -> Iterator[pa.RecordBatch]:
        for name in names:
            reader = readers[name]
            for documents in reader.index.batches():
                first = int(documents.starts[0])
                ends = documents.starts + documents.tokens - first
                tokens = pa.array(np.ascontiguousarray(reader.read(first, int(ends[-1]))))
                offsets = pa.array(np.concatenate([[0], ends]), pa.int64())
                ids = pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(16), len(documents), [None, pa.py_buffer(documents.ids.tobytes())]
                )
                rows = pa.LargeListArray.from_arrays(offsets, tokens)
                yield pa.RecordBatch.from_arrays([pa.array([name] * len(documents)), ids, rows], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())
