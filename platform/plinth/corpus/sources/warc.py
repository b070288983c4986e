"""Reader of WARC files (ISO 28500, and the drafts 0.17 and 0.18) and WET files, compressed or not. FastWARC parses the
files, and each page becomes one record.

FastWARC alone would end silently at a truncated member, return short records, stop at a broken header, and skip bytes
between records if lines end in bare line feeds (as in ClueWeb09). Therefore each gzip member is parsed separately, and
lengths are compared with the headers. After a broken record, the stream is searched for the next record. Therefore
damage affects only the records in which it occurs, and these records are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from plinth.corpus.sources.codings import HTML, TEXT, UNKNOWN, XML, charset, decode, decoded, page_type
from plinth.corpus.sources.inventory import record_licence
from plinth.corpus.sources.parameters import Source
from plinth.corpus.sources.record import RawRecord, Reader, Reject
from plinth.corpus.sources.streams import READ_BYTES, PlainStream, stretches, with_compression
from plinth.corpus.sources.times import of_headers, read_time
from plinth.errors import PlinthError
from plinth.storage.files import SourceFile, opened

#: Record types that say something about the archive or about a capture.
ABOUT = ("warcinfo", "request", "metadata")
PAGES = ("response", "resource", "conversion")
#: Addresses of a crawler's own records: its log and settings (GNU Wget), answers of name servers (Heritrix).
NOT_PAGES = ("metadata:", "dns:", "whois:")
ROBOTS = re.compile(r"https?://[^/?#]+/robots\.txt(?:[?#].*)?", re.I)
#: A media type ends at its parameters, or where a server has joined two headers.
MIME_END = re.compile("[;,]")
MAX_RESYNCS = 1000
WINDOW_BYTES = 4 * READ_BYTES
MARK = re.compile(rb"\nWARC/[01]\.\d{1,2}\r?\n")
MARK_BYTES = 13
HEADER_END = re.compile(rb"\r?\n\r?\n")
#: The first line of a record whose header has bare line feeds.
BARE = re.compile(rb"\s*WARC/[01]\.\d{1,2}\n")


def read_warc(file: SourceFile, source: Source, licence: str, max_bytes: int) -> Iterator[RawRecord | Reject]:
    """Yield the records of type response, resource and conversion in a WARC file, in file order."""
    reader = _Reader(file, record_licence(licence, None), max_bytes)
    with opened(file) as raw:
        for part in stretches(raw, file.name):
            yield from reader.records(part)
            while part.read(READ_BYTES):  # what a broken record left behind
                pass
            if part.fault:
                yield Reject(reader.uri, reader.where, part.fault.reason, part.fault.detail)


class _Window:
    """Stream of plain bytes that keeps its last bytes, so that reading can go back to the start of a record after an
    error."""

    def __init__(self, part: PlainStream) -> None:
        self._part = part
        self._kept, self._position = b"", 0  # the kept bytes end at the stretch's own position

    def read(self, size: int = -1) -> bytes:
        ahead = self._part.tell() - self._position
        if ahead:
            data = self._kept[len(self._kept) - ahead :][:size]
        else:
            data = self._part.read(size)
            self._kept = (self._kept + data)[-WINDOW_BYTES:]
        self._position += len(data)
        return data

    def tell(self) -> int:
        return self._position

    def bare_lines(self) -> bool:
        """Return True if the header of the next record ends its lines with bare line feeds."""
        head = self.read(READ_BYTES)
        self._position -= len(head)
        return BARE.match(head) is not None

    def end_of(self, start: int, length: int | None) -> int | None:
        """Return the end of the record that begins at `start`, computed from its length. Return None if the length is
        unknown."""
        at = start - self._start
        header = HEADER_END.search(self._kept, at) if at >= 0 and length is not None else None
        return header and self._start + header.end() + (length or 0)

    def lost(self, end: int | None, start: int) -> bool:
        """Return True if there are bytes other than line ends between the end of a record and the start of the next."""
        if end is None or start <= end:
            return False
        return end < self._start or bool(self._kept[end - self._start : start - self._start].strip())

    @property
    def _start(self) -> int:
        """Position in the stream at which the kept bytes start."""
        return self._part.tell() - len(self._kept)

    def find_record(self, floor: int) -> bool:
        """Move to the first WARC record that starts at or after `floor`. Return False if there is no such record."""
        found = MARK.search(self._kept, max(0, floor - 1 - self._start))
        while found is None:
            data = self._part.read(READ_BYTES)
            if not data:
                return False
            self._kept = (self._kept + data)[-WINDOW_BYTES:]
            found = MARK.search(self._kept, max(0, len(self._kept) - len(data) - MARK_BYTES))
        self._position = self._start + found.start() + 1
        return True


class _Reader:
    """Reader that numbers the records of one file and remembers the current record."""

    def __init__(self, file: SourceFile, licence: str, max_bytes: int) -> None:
        self.file, self.licence, self.max_bytes = file, licence, max_bytes
        self.number, self.uri = 0, file.name

    @property
    def where(self) -> str:
        return f"record {self.number} from byte {self.file.start}" if self.file.start else f"record {self.number}"

    def records(self, part: PlainStream) -> Iterator[RawRecord | Reject]:
        """Yield the records of one stream of plain bytes, and continue after each broken record."""
        from fastwarc.warc import ArchiveIterator

        window, floor = _Window(part), 0
        for _ in range(MAX_RESYNCS):
            counted = False  # is what ends the iteration a part of a record that is a reject already?
            try:
                quirks, end = window.bare_lines(), None
                for record in ArchiveIterator(
                    cast(BinaryIO, window), stream_detect=False, parse_http=False, quirks_mode=quirks
                ):
                    if quirks and window.lost(end, record.stream_pos):
                        yield self._passed_over()
                    self.number += 1
                    length = _length(record)
                    floor = max(floor, record.stream_pos + (length or 0))
                    end, counted = window.end_of(record.stream_pos, length), length is None
                    item = self._record(record, length)
                    if part.fault:
                        return  # the record was cut short by the damage, which is reported in its place
                    yield item
                    self.uri = self.file.name  # damage from here on is not this record's
                if quirks and not part.fault and window.lost(end, window.tell()):
                    yield self._passed_over()
                return
            except BaseException as error:
                if isinstance(error, PlinthError) or not _is_parse_failure(error):
                    raise
                if part.fault:
                    self.number, self.uri = self.number + 1, self.file.name
                    return
                if not counted:
                    yield self._passed_over(str(error))
            if not window.find_record(floor := floor + 1):
                return
            floor = window.tell()
        yield Reject(self.file.name, self.where, "broken_record", f"more than {MAX_RESYNCS} broken records: gave up")

    def _passed_over(self, detail: str = "bytes between two records that are no record") -> Reject:
        self.number, self.uri = self.number + 1, self.file.name
        return Reject(self.uri, self.where, "broken_record", detail)

    def _record(self, record: Any, length: int | None) -> RawRecord | Reject:
        kind = (record.headers.get("WARC-Type") or "no type").strip().lower()
        uri = (record.headers.get("WARC-Target-URI") or "").strip().strip("<>")
        self.uri = uri or self.file.name
        if kind in ABOUT:
            return self._refuse("not_page", f"WARC-Type {kind}", length or 0)
        if kind == "revisit":
            return self._refuse("revisit", record.headers.get("WARC-Profile") or "no profile", length or 0)
        if kind not in PAGES or length is None:
            reason = "segmented_record" if kind == "continuation" else "broken_record"
            return self._refuse(reason, f"WARC-Type {kind}, Content-Length {length}", 0)
        if record.is_http:
            record.parse_http(quirks_mode=True)  # bare line feeds end a line of HTTP, too (RFC 9112, 2.2)
        # Before the size check: a video in a crawl is not a page that is too large.
        if unwanted := _unwanted(record, uri):
            if record.content_length and not record.reader.read(1):
                return self._refuse("broken_record", "it ends inside its header", length)
            return self._refuse(*unwanted, length)
        if record.content_length > self.max_bytes:
            return self._refuse("too_large", f"{length} bytes, at most {self.max_bytes}", length)
        body = record.reader.read()
        if len(body) < record.content_length:
            return self._refuse("broken_record", f"{len(body)} bytes, promised {record.content_length}", len(body))
        if not uri:
            return self._refuse("missing_field", "no WARC-Target-URI", length)
        return self._page(record, body, length)

    def _page(self, record: Any, body: bytes, length: int) -> RawRecord | Reject:
        truncated = record.headers.get("WARC-Truncated") or ""
        if record.is_http:
            plain = decoded(record.http_headers, body, self.max_bytes, partial_body=bool(truncated))
            if isinstance(plain, str):
                return self._refuse(plain, "the HTTP body's transfer or content encoding", length)
            body = plain
        if not body.strip():
            return self._refuse("empty", "no body", length)
        declared, mime = _declared(record)
        if (found := page_type(mime, body)) not in HTML + TEXT:
            return self._refuse("not_html", f"{found} by its content, declared {mime or 'nothing'}", length)
        content: str | bytes = body
        if found in TEXT:
            try:
                content = decode(body, charset(declared), partial=bool(truncated))
            except UnicodeDecodeError as error:
                return self._refuse("invalid_utf8", str(error), length)
        captured = read_time((record.headers.get("WARC-Date") or "").strip())
        return RawRecord(
            uri=self.uri,
            content=content,
            mime=mime if mime not in UNKNOWN else found,
            licence=self.licence,
            source_bytes=length,
            where=self.where,
            charset=charset(declared),
            captured_at=captured,
            unread_date=captured is None,
            extra=(of_headers(record.http_headers) if record.is_http else {})
            | ({"truncated": truncated} if truncated else {}),
        )

    def _refuse(self, reason: str, detail: str, size: int) -> Reject:
        return Reject(self.uri, self.where, reason, detail, size)


def _unwanted(record: Any, uri: str) -> tuple[str, str] | None:
    """Return the reason and detail of a reject if the headers show that a record is not a page or not an HTTP response,
    or None."""
    if uri.startswith(NOT_PAGES):
        return "not_page", f"an address of {uri.partition(':')[0]}"
    if record.is_http and (status := record.http_headers.status_code) != 200:
        return ("http_status", f"status {status}") if status else ("broken_record", "no status line of HTTP")
    if ROBOTS.fullmatch(uri):
        return "robots_txt", "rules for crawlers"
    _, mime = _declared(record)
    return None if mime in HTML + XML + TEXT + UNKNOWN else ("not_html", mime)


def _declared(record: Any) -> tuple[str, str]:
    """Return the declared `Content-Type` and its media type. If none is declared, return the type that the archiver
    identified."""
    declared = (record.http_headers if record.is_http else record.headers).get("Content-Type") or ""
    declared = declared or record.headers.get("WARC-Identified-Payload-Type") or ""
    return declared, MIME_END.split(declared, maxsplit=1)[0].strip().lower()


def _length(record: Any) -> int | None:
    text = record.headers.get("Content-Length") or ""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def _is_parse_failure(error: BaseException) -> bool:
    """Return True for OSError and ValueError of FastWARC, and for a panic of its Rust code."""
    return isinstance(error, OSError | ValueError) or type(error).__name__ == "PanicException"


#: WARC, and Common Crawl's files of extracted text (WET) and of metadata (WAT, without text), as they are named there
#: (`….warc.wet.gz`) and elsewhere.
READER = Reader(
    name="warc",
    description="WARC or WET, compressed or not: one record per captured page.",
    read=read_warc,
    suffixes=with_compression(".warc", ".wet", ".wat"),
)
