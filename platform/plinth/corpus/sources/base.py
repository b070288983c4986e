"""The record that describes a reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from plinth.corpus.sources.parameters import Source
from plinth.corpus.sources.record import RawRecord, Reject
from plinth.extensions import NoParams
from plinth.records import Frozen
from plinth.storage.files import SourceFile

#: `(file, source, licence, max_bytes) -> records and rejects`, as `readers.read` describes it.
Read = Callable[[SourceFile, Source, str, int], Iterator[RawRecord | Reject]]


@dataclass(frozen=True)
class Reader:
    """Records and rejects out of the files of one format.

    Args:
        name: `kind` of a source in the recipe.
        description: one sentence.
        read: a generator over one file; damage is a counted reject, never an exception.
        suffixes: file name endings to read where the source names none; empty means all.
        licensed_by_file: `per-document` licences come from LICENCES.json, not from the records.
        params: frozen model of `options` of the source. `read` finds them raw in `source.options`.
    """

    name: str
    description: str
    read: Read
    suffixes: tuple[str, ...] = ()
    licensed_by_file: bool = False
    params: type[Frozen] = NoParams
