"""The reader of each `kind` of source."""

from __future__ import annotations

from collections.abc import Iterator

from plinth.corpus.sources.parameters import Source
from plinth.corpus.sources.record import RawRecord, Reader, Reject
from plinth.extensions import Catalogue
from plinth.storage.files import SourceFile

#: Built-in readers, and those of installed packages (entry points of the group `plinth.readers`).
READERS = Catalogue(
    "plinth.readers",
    "reader",
    Reader,
    {
        "warc": "plinth.corpus.sources.warc:READER",
        "html": "plinth.corpus.sources.files:HTML",
        "pdf": "plinth.corpus.sources.files:PDF",
        "latex": "plinth.corpus.sources.files:LATEX",
        "jsonl": "plinth.corpus.sources.jsonl:READER",
        "parquet": "plinth.corpus.sources.parquet:READER",
        "text": "plinth.corpus.sources.files:TEXT",
        "tree": "plinth.corpus.sources.files:TREE",
        "teacher": "plinth.corpus.sources.sampled:READER",
    },
)


def read(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """The records of a file in file order, and a reject for everything that is not one.

    Args:
        file: from the inventory; a file that has changed since raises.
        source: its kind and fields.
        licence: the file's, or `per-document` where each record carries its own.
        max_bytes: a larger record is a reject; never more than a few times this is held.

    Raises:
        RecipeError: no reader of this kind.
        SourceError: the file cannot be opened or read.
        IntegrityError: the file is not what the inventory lists.
    """
    silent = True
    for item in READERS.find(source.kind).read(file, source, licence, max_bytes):
        silent = False
        yield item
    if silent:
        yield Reject(file.name, "file", "empty", f"{file.bytes} bytes without a record", file.bytes)


def identity(kind: str) -> str:
    """The package, its version and the digest of its source, of a reader that is not built in; else empty.

    Built-in readers are part of the version of the stage `documents`.
    """
    READERS.find(kind)
    origin = READERS.origin(kind)
    return "" if origin is None else str(origin)
