"""Search in the text of a list's documents: words by a bounded scan, and near duplicates by the published index."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from plinth.compute.context import Context
from plinth.corpus.dedup.near.index import open_published
from plinth.errors import IntegrityError
from plinth_extras.corpus_page.document import DocumentReader, segments
from plinth_extras.corpus_page.ledger import LedgerPart, OpenLedger, table
from plinth_extras.corpus_page.view import PAGE_ROWS, View

#: Bytes of text that one request reads. The next request continues.
SCAN_BYTES: Final = 48 * 2**20
#: Characters around a match.
AROUND: Final = 90
Rows = npt.NDArray[np.int64]


@dataclass
class WordMatches:
    """Documents that contain the words of a list, in order.

    Args:
        searched: documents of the list that were read; `after` continues behind them, and is 0 at the end.
        rows: rows of the ledger, each with `before`, `match` and `behind`.
    """

    searched: int = 0
    after: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)


def words(ctx: Context, ledger: OpenLedger, view: View) -> WordMatches:
    """Search the texts of a list for a phrase, ignoring the case of letters.

    A match inside personal data is not a match; otherwise the page would tell, guess by guess, what it hides. At most
    `SCAN_BYTES` of text are read, from the document numbered `view.after` of the whole ledger on, until a page
    of matches is found. The result is the same for every request with this address.
    """
    documents, found, first = DocumentReader(ctx, ledger), WordMatches(), 0
    budget, hits = SCAN_BYTES, list[_Hit]()
    for number, part in enumerate(ledger.parts):
        begin = max(0, view.after - first)
        wanted = _wanted(ledger, view, part) if begin < part.part.rows else np.empty(0, np.int64)
        for group in _groups(documents, part, wanted[wanted >= begin]):
            if budget <= 0:
                found.after = first + int(group.rows[0])
                return _named(documents, found, hits)
            budget -= group.bytes
            column = group.read()
            starts = pc.find_substring(column, view.text, ignore_case=True).to_numpy()
            hidden, places = dict[int, list[dict[str, Any]]](), np.flatnonzero(starts >= 0).tolist()
            for order, at in enumerate(places):
                if len(hits) == PAGE_ROWS:
                    found.searched += at
                    found.after = first + int(group.rows[at])
                    return _named(documents, found, hits)
                row = int(group.rows[at])
                if row not in hidden:
                    some = group.rows[places[order : order + PAGE_ROWS]].tolist()
                    hidden = documents.personal(part.bucket, part.number, some)
                own, text = sorted(hidden[row], key=lambda span: int(span["start_cp"])), column[at].as_buffer()
                start = _shown_match(text, int(starts[at]), view.text, own)
                if start >= 0:
                    hits.append(_Hit(number, row, _excerpt(text, start, view.text, own)))
            found.searched += len(group.rows)
        first += part.part.rows
    return _named(documents, found, hits)


def near(ctx: Context, ledger: OpenLedger, view: View) -> list[dict[str, Any]]:
    """Return the documents of a list that are similar to a text, most similar first, each with `similarity`.

    Raises:
        MissingError, IntegrityError: there is no near-duplicate index, or it is damaged.
    """
    with open_published(ctx) as index:
        matches = [match for match in index.near(view.similar, limit=PAGE_ROWS) if match.id]
    rows = ledger.find([str(match.id) for match in matches], view)
    found = [(rows.get(str(match.id)), match) for match in matches]
    return [{**row, "similarity": match.best, "exact": match.exact} for row, match in found if row]


@dataclass(frozen=True)
class _Group:
    file: pq.ParquetFile
    number: int
    rows: Rows
    first: int
    bytes: int

    def read(self) -> pa.ChunkedArray:
        column = self.file.read_row_group(self.number, columns=["text"]).column("text")
        return column.take(pa.array(self.rows - self.first)) if len(self.rows) < len(column) else column


def _wanted(ledger: OpenLedger, view: View, part: LedgerPart) -> Rows:
    """Return the rows of a part that are in the list."""
    if not view.filtered:
        return np.arange(part.part.rows)
    where, values = view.where()
    return ledger.numbers(f"select file_row_number as n from {table([part.path])} where {where} order by n", values)


def _groups(documents: DocumentReader, part: LedgerPart, wanted: Rows) -> Iterator[_Group]:
    """Yield the row groups of the documents' part that contain wanted rows."""
    if not len(wanted):
        return
    own = documents.part(part.bucket, part.number)
    path = documents.ctx.store.open_path(own.blob)
    try:
        with pq.ParquetFile(path) as file:
            at, first = file.schema_arrow.get_field_index("text"), 0
            for number in range(file.num_row_groups):
                held = file.metadata.row_group(number)
                begin, end = np.searchsorted(wanted, [first, first + held.num_rows])
                if end > begin:
                    size = held.column(at).total_uncompressed_size
                    yield _Group(file, number, wanted[begin:end], first, size)
                first += held.num_rows
    except (pa.ArrowException, OSError) as error:
        raise IntegrityError(
            f"{path} ({part.bucket}/{own.name}) cannot be read",
            found=error,
            remedy=f"delete the file and run `plinth run --select {part.bucket}/documents`",
        ) from error


@dataclass(frozen=True)
class _Hit:
    """Match in a text: the place of the document, and the characters around the match."""

    part: int
    row: int
    excerpt: Mapping[str, str]


def _shown_match(text: pa.Buffer, at: int, phrase: str, hidden: Sequence[Mapping[str, Any]]) -> int:
    """Return the byte at which the first match outside of hidden spans begins, or -1. The first match is at `at`."""
    if not hidden:
        return at
    whole = text.to_pybytes().decode()
    for match in re.finditer(re.escape(phrase), whole, re.IGNORECASE):
        if not any(span["start_cp"] < match.end() and span["end_cp"] > match.start() for span in hidden):
            return len(whole[: match.start()].encode())
    return -1


def _excerpt(text: pa.Buffer, at: int, phrase: str, hidden: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the characters around the match at a byte of a text, without hidden spans. The whole text, which may be
    large, is not decoded."""
    most = 4 * AROUND  # bytes of a character
    before = text[max(0, at - most) : at].to_pybytes().decode("utf-8", "ignore")[-AROUND:]
    rest = text[at : at + 4 * len(phrase) + most].to_pybytes().decode("utf-8", "ignore")
    match = re.match(re.escape(phrase), rest, re.IGNORECASE)
    end = match.end() if match else len(phrase)
    starts_of_characters = (np.frombuffer(text, np.uint8, at) & 0xC0) != 0x80
    start_cp = int(np.count_nonzero(starts_of_characters)) - len(before)
    reasons, found = {str(span["reason"]) for span in hidden}, {}
    for name, piece in (("before", before), ("match", rest[:end]), ("behind", rest[end : end + AROUND])):
        found[name] = "".join(one.text for one in segments(piece, start_cp, hidden, reasons))
        start_cp += len(piece)
    return found


def _named(documents: DocumentReader, found: WordMatches, hits: Sequence[_Hit]) -> WordMatches:
    """Add the matches with their rows of the ledger."""
    ledger_rows = documents.ledger.at([(hit.part, hit.row) for hit in hits])
    found.rows = [{**row, **hit.excerpt} for row, hit in zip(ledger_rows, hits, strict=True)]
    return found
