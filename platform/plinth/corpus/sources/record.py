"""Readers of sources: the class `Reader` and all readers by name, raw records, rejects with their reason, and the
account of all files and records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from plinth.corpus.sources.parameters import Source
from plinth.errors import StageError
from plinth.extensions import Catalogue, NoParams
from plinth.records import Frozen, Manifest
from plinth.storage.files import PRIVATE_FILE, SPECIAL_FILE, SYMLINK, SourceFile
from plinth.text import counted

# The results of every reader: a raw record, or a reject with its reason.
#
# Damage: what should be a document and cannot be one. It counts against `max_reject_rate`, and so does any reason of an
# installed reader that is not among the exclusions.
#
# reason             what was found
# ------             --------------
# broken_gzip        compressed bytes that do not decompress
# truncated_gzip     a gzip member cut short (records before the cut are kept)
# truncated_zstd     a Zstandard frame cut short or damaged
# broken_bzip2       a bzip2 stream cut short or damaged
# broken_xz          an xz stream cut short or damaged
# broken_record      a WARC record or JSON line that does not parse, or is shorter than declared
# broken_parquet     a Parquet file or row group that cannot be read
# segmented_record   a WARC record split over several, which is not put together again
# too_large          more bytes than `extraction.max_bytes`
# invalid_utf8       text that is not UTF-8 (captured pages and texts are decoded as in a browser: `charsets`)
# nul_bytes          NUL in what should be text
# missing_field      a JSON line or row that lacks its text's field, a capture without address
# extract_failed     the parser failed or died on the page
# extract_timeout    the parser ran longer than `extraction.seconds_per_page`
#
# Exclusions: what is whole and no document.
#
# reason             what was found
# ------             --------------
# http_status        a captured response other than 200: a redirect, an error page
# revisit            a capture whose content is that of an earlier one, which the archive does not repeat
# robots_txt         `/robots.txt` of a site
# not_page           a record of the crawler's own: requests, metadata, DNS answers, its log, its settings
# not_html           a captured image, style, script or feed: neither HTML nor plain text
# binary             a file of a text or source tree that is an image, an archive, a program
# attributes         a line of Dolma's attributes: scores about a document, without its text
# empty              no text, or none left after extraction and normalization
# symlink            a symbolic link that leads out of its source, to a folder, or to a file that is read anyway
# special_file       a pipe, socket or device in a source
# private_file       a key, a credential or a file of Plinth's own, or a hard link to one (`storage.off_limits`)
# illegal_content    it hits a list of the illegal-content gate (`plinth.corpus.illegal`); the reject holds no text
# encrypted          a PDF that opens only with a password
# takedown           an entry of the exclusion list takes it (`plinth.corpus.exclusions`)
# seen_before        an earlier record of the bucket has its address and its text: a page captured again, unchanged

DETAIL_CHARACTERS = 300
QUARANTINED = "illegal_content"
TAKEDOWN = "takedown"
SEEN_BEFORE = "seen_before"
EMPTY = "empty"
ATTRIBUTES = "attributes"
#: Reasons that do not count as damage.
EXCLUSIONS = frozenset(
    {
        "http_status",
        "revisit",
        "robots_txt",
        "not_page",
        "not_html",
        "binary",
        "encrypted",
        ATTRIBUTES,
        EMPTY,
        SYMLINK,
        SPECIAL_FILE,
        PRIVATE_FILE,
        QUARANTINED,
        TAKEDOWN,
        SEEN_BEFORE,
    }
)


@dataclass(frozen=True, slots=True)
class RawRecord:
    """Captured page, line or file, before extraction.

    Args:
        uri: stable name: the captured address, or the name within the source; never a local path.
        content: decoded text, or the bytes of an HTML page, which is decoded and extracted later.
        mime: media type without parameters.
        licence: SPDX expression or `unknown`.
        source_bytes: bytes of the raw record.
        where: position of the record in its file, for messages.
        charset: character set that the server declared, for HTML.
        captured_at: time of capture, in UTC.
        extra: other metadata, as JSON values.
        unread_date: True if the date cannot be read, or is missing although the format requires it.
        repeated_id: True if the identifier belongs to a different text earlier in the file; set once per identifier.
        file, sha256: name of the source file and digest of the original content, for the illegal-content gate.
    """

    uri: str
    content: str | bytes
    mime: str
    licence: str
    source_bytes: int
    where: str
    charset: str = ""
    captured_at: datetime | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    unread_date: bool = False
    repeated_id: bool = False
    file: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Reject:
    """Record that did not become a document. `reason` is a short key such as `seen_before`; `where` is the record's
    position in its file."""

    uri: str
    where: str
    reason: str
    detail: str
    source_bytes: int = 0

    @property
    def brief(self) -> str:
        """Detail of the reject as one line of bounded length, without characters that UTF-8 cannot encode."""
        line = " ".join(self.detail.split())[:DETAIL_CHARACTERS]
        return line.encode("utf-8", "backslashreplace").decode()


def refuse(record: RawRecord, reason: str, detail: str) -> Reject:
    """Return the reject for a record that was read but cannot be used."""
    return Reject(record.uri, record.where, reason, detail, record.source_bytes)


def damage(rejects: Mapping[str, int]) -> int:
    """Return the number of damaged records, from the counts of rejects by reason."""
    return sum(count for reason, count in rejects.items() if reason not in EXCLUSIONS)


#: `(file, source, licence, max_bytes) -> records and rejects`, as `pairs.read` describes it.
Read = Callable[[SourceFile, Source, str, int], Iterator[RawRecord | Reject]]


@dataclass(frozen=True)
class Reader:
    """Reader of one file format, which yields records and rejects.

    Args:
        name: `kind` of a source in the recipe.
        description: one sentence for the catalog.
        read: generator over one file; damage is a counted reject, never an exception.
        suffixes: file name suffixes to read if the source names none; if empty, all files are read.
        licensed_by_file: True if `per-document` licenses come from LICENCES.json instead of the records.
        params: immutable Pydantic class for the source's `options`. `read` finds the raw values in `source.options`.
    """

    name: str
    description: str
    read: Read
    suffixes: tuple[str, ...] = ()
    licensed_by_file: bool = False
    params: type[Frozen] = NoParams


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
        "jsonl": "plinth.corpus.sources.files:JSONL",
        "parquet": "plinth.corpus.sources.files:PARQUET",
        "text": "plinth.corpus.sources.files:TEXT",
        "tree": "plinth.corpus.sources.files:TREE",
        "teacher": "plinth.corpus.sources.files:SAMPLED",
        "rewrite": "plinth.corpus.sources.files:REWRITTEN",
    },
)


def read(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """Yield the records of a file in file order, and a reject for each item that is not a valid record.

    Args:
        file: file from the inventory.
        source: source of the file, with its kind and fields.
        licence: license of the file, or `per-document` if each record has a license.
        max_bytes: maximum size of a record; a larger record becomes a reject. A reader needs a small multiple of this
            size in memory.

    Raises:
        RecipeError: there is no reader of this kind.
        SourceError: the file cannot be opened or read.
        IntegrityError: the file has changed since the inventory.
    """
    silent = True
    for item in READERS.find(source.kind).read(file, source, licence, max_bytes):
        silent = False
        yield item
    if silent:
        yield Reject(file.name, "file", "empty", f"{file.bytes} bytes without a record", file.bytes)


def identity(kind: str) -> str:
    """Return the package, version and source digest of an installed reader, or an empty text for a built-in reader.

    Built-in readers are part of the version of the stage `documents`.
    """
    READERS.find(kind)
    origin = READERS.origin(kind)
    return "" if origin is None else str(origin)


# The account of a bucket: each file and each record of its sources is counted once, and the counts add up.
#
#     files      found = read + not read, by reason
#     records    read = documents + exclusions + damage + repeats
#
# The left sides are counted where files are listed and where readers yield records, the right sides where files are
# opened and where parts are written. So what is lost on the way between them shows.


class Account(Frozen):
    """Account of all files and records of a bucket, which shows that none was lost.

    `repeated_ids` counts identifiers that several different texts of a file have. `unread_dates` counts documents with
    a date that cannot be read.
    """

    found: int
    read: int
    not_read: Mapping[str, int]
    records: int
    documents: int
    exclusions: Mapping[str, int]
    damage: Mapping[str, int]
    repeats: int
    repeated_ids: int = 0
    unread_dates: int = 0

    @property
    def line(self) -> str:
        """The account as one line of text."""
        files = f"{counted(self.found, 'file')}: {self.read:,} read"
        files += f", {_total(self.not_read):,} not read{_reasons(self.not_read)}" if self.not_read else ""
        terms = [counted(self.documents, "document")]
        for name, counts in (("excluded", self.exclusions), ("damaged", self.damage)):
            terms += [f"{_total(counts):,} {name}{_reasons(counts)}"] if counts else []
        terms += [f"{self.repeats:,} repeated"] if self.repeats else []
        ids = f"; {counted(self.repeated_ids, 'id')} on several texts" if self.repeated_ids else ""
        dates = f"; {counted(self.unread_dates, 'date')} not read" if self.unread_dates else ""
        return f"{files}; {counted(self.records, 'record')}: {', '.join(terms)}{ids}{dates}"

    def require_balance(self, label: str) -> None:
        """Raise StageError if a file or record was lost.

        Raises:
            StageError: the numbers of files or of records do not add up.
        """
        files = self.read + _total(self.not_read)
        written = self.documents + _total(self.exclusions) + _total(self.damage) + self.repeats
        if self.found == files and self.records == written:
            return
        raise StageError(
            f"{label}: the numbers of files or records do not add up",
            found=f"{files} of {counted(self.found, 'file')}, {written} of {counted(self.records, 'record')}: "
            + self.line,
            expected="counts that add up to the files found and to the records read",
            remedy="report this as a bug, with these lines; nothing of this bucket was published",
        )


def account(found: int, not_read: Mapping[str, int], documents: Mapping[str, Any]) -> Account:
    """Return the account of all files and records of a bucket.

    Args:
        found: number of files in the bucket's sources.
        not_read: number of files that are not read, by reason.
        documents: statistics of the bucket's documents.
    """
    rejects = documents["rejects"]
    return Account(
        found=found,
        read=documents["files_read"],
        not_read=not_read,
        records=documents["records"],
        documents=documents["documents"],
        exclusions={name: n for name, n in rejects.items() if name in EXCLUSIONS and name != SEEN_BEFORE},
        damage={name: n for name, n in rejects.items() if name not in EXCLUSIONS},
        repeats=rejects.get(SEEN_BEFORE, 0),
        repeated_ids=documents.get("repeated_ids", 0),
        unread_dates=documents.get("unread_dates", 0),
    )


def published(sources: Manifest, documents: Manifest) -> Account | None:
    """Return the account of a bucket from published manifests. Manifests of earlier versions did not count everything;
    for them, return None."""
    if "found" not in sources.stats or "records" not in documents.stats:
        return None
    return account(sources.stats["found"], sources.stats["not_read"], documents.stats)


def _total(counts: Mapping[str, int]) -> int:
    return sum(counts.values())


def _reasons(counts: Mapping[str, int]) -> str:
    """Format counts by reason as text in parentheses, largest count first."""
    named = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return f" ({', '.join(f'{n:,} {name}' for name, n in named)})"
