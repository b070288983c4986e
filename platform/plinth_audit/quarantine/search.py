"""Search of stored blobs for text that matches the current lists, for example text read before a list was extended.

Every Parquet blob with columns `id` and `text` is read and compared; nothing is changed. Tokens, vectors and weights
contain no text, so the search does not list them. The lineage shows which of them derive from a matching blob.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from plinth.compute.context import Context
from plinth.corpus.illegal import Matcher, media_of, read
from plinth.corpus.sources.parameters import Matching
from plinth.errors import IntegrityError
from plinth.records import Frozen, Manifest

BATCH_ROWS = 256
#: Columns of tables with document text.
WANTED = {"id", "text"}


class BlobHit(Frozen):
    """Stored blob with text that matches a list of illegal content.

    Args:
        md5: address of the blob in the store.
        path: path of the blob's file.
        documents: number of matching rows.
        lists: list files with matching entries.
        published: assets whose published manifest references the blob.
        older: assets of which only older manifests reference the blob.
    """

    md5: str
    path: str
    documents: int
    lists: tuple[str, ...]
    published: tuple[str, ...]
    older: tuple[str, ...]


def find(ctx: Context, params: Matching, lists: Manifest) -> Iterator[BlobHit]:
    """Yield the blobs that contain text from a list, sorted by address. Blobs without a manifest are included.

    Raises:
        SourceError: the lists are invalid.
        StorageError: the workspace is shared, so its store is not a folder.
        IntegrityError: a table cannot be read.
    """
    ctx.store.require_folder("the search for listed text")
    files = {part.name: ctx.store.open_path(part.blob) for part in lists.parts}
    matcher = Matcher(read(files, lists.asset, params), params)
    published, older = _names(ctx)
    for path in sorted(ctx.store.files.glob("??/*")):
        md5 = path.parent.name + path.name
        documents, hit = _hits(path, matcher)
        if documents:
            here, before = published.get(md5, set()), older.get(md5, set())
            yield BlobHit(
                md5=md5,
                path=str(path),
                documents=documents,
                lists=tuple(sorted(hit)),
                published=tuple(sorted(here)),
                older=tuple(sorted(before - here)),
            )


def _names(ctx: Context) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return the names of assets that use each blob address: first by published manifests, then by older manifests."""
    published: dict[str, set[str]] = {}
    older: dict[str, set[str]] = {}
    current = {ref.digest for ref in ctx.refs.all()}
    for path in ctx.refs.saved():
        made = ctx.refs.load(path.stem)
        names = published if path.stem in current else older
        for part in made.parts:
            names.setdefault(part.blob.md5, set()).add(made.asset)
    return published, older


def _hits(path: Path, matcher: Matcher) -> tuple[int, set[str]]:
    with path.open("rb") as stream:
        if stream.read(4) != b"PAR1":
            return 0, set()
    documents, hit = 0, set[str]()
    try:
        with pq.ParquetFile(path) as file:
            names = set(file.schema_arrow.names)
            if not names >= WANTED:
                return 0, set()
            columns = sorted({"text", "uri", "extra"} & names)
            for batch in file.iter_batches(BATCH_ROWS, columns=columns, use_threads=False):
                for hits in _compared(batch, matcher):
                    documents += bool(hits)
                    hit |= hits
    except pa.ArrowException as error:
        raise IntegrityError(f"{path} is a damaged table", found=error) from error
    return documents, hit


def _compared(batch: pa.RecordBatch, matcher: Matcher) -> Iterator[set[str]]:
    rows, names = batch.num_rows, batch.schema.names
    uris = [uri or "" for uri in batch.column("uri").to_pylist()] if "uri" in names else [""] * rows
    media = media_of([one or "" for one in batch.column("extra").to_pylist()]) if "extra" in names else [None] * rows
    for hits in matcher.texts(batch.column("text"), uris, media):
        yield {hit.entry.file for hit in hits}
