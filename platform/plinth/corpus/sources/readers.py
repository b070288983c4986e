"""The reader of each `kind` of source."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from plinth.corpus.sources.files import read_html, read_text, read_tree
from plinth.corpus.sources.jsonl import read_jsonl
from plinth.corpus.sources.parameters import Source
from plinth.corpus.sources.parquet import read_parquet
from plinth.corpus.sources.record import RawRecord, Reject
from plinth.corpus.sources.warc import read_warc
from plinth.storage.files import SourceFile

Reader = Callable[[SourceFile, Source, str, int], Iterator[RawRecord | Reject]]

READERS: dict[str, Reader] = {
    "warc": read_warc,
    "html": read_html,
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "text": read_text,
    "tree": read_tree,
}


def read(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """The records of a file in file order, and a reject for everything that is not one.

    Args:
        file: from the inventory; a file that has changed since raises.
        source: its kind and fields.
        licence: the file's, or `per-document` where each record carries its own.
        max_bytes: a larger record is a reject; never more than a few times this is held.

    Raises:
        SourceError: the file cannot be opened or read.
        IntegrityError: the file is not what the inventory lists.
    """
    silent = True
    for item in READERS[source.kind](file, source, licence, max_bytes):
        silent = False
        yield item
    if silent:
        yield Reject(file.name, "file", "empty", f"{file.bytes} bytes without a record", file.bytes)
