"""Records with text in the place of HTML, PDF and LaTeX, in the order in which they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import urljoin

from plinth.corpus.extract.extractor import Extractor
from plinth.corpus.extract.page import KIND_OF, Answer, ExtractionFailure, Page, Text
from plinth.corpus.sources.licences import UNKNOWN
from plinth.corpus.sources.record import RawRecord, Reject, refuse
from plinth.corpus.sources.signals import REL_LICENSE, TDM_POLICY, joined, spdx

#: Pages travel to the extractor in batches of at most this many pages, and until they hold so many bytes, which a
#: pipe takes in one turn; no more than so many records wait for a page among them.
BATCH_PAGES, BATCH_BYTES, BATCH_RECORDS = 256, 900_000, 1024

WEB = ("http://", "https://")
#: Metadata that is an address, which pages may write relative to their own.
ADDRESSES = ("canonical", TDM_POLICY, REL_LICENSE)
Records = Sequence[RawRecord | Reject]


def extracted(items: Iterable[RawRecord | Reject], extractor: Extractor) -> Iterator[RawRecord | Reject]:
    """Text as it came, and main content for HTML; a page that gives none is a reject.

    Memory is two batches: while the answers to one are used, the extractor has the next.
    """
    sent: deque[Records] = deque()

    def pages() -> Iterator[list[Page]]:
        for batch in _batches(items):
            sent.append(batch)
            yield [page for item in batch if (page := _page(item))]

    for answers in extractor.map(pages()):
        yield from _merged(sent.popleft(), iter(answers))


def _batches(items: Iterable[RawRecord | Reject]) -> Iterator[Records]:
    """Records in groups that hold a batch of pages; without pages each goes by itself, at once."""
    waiting: list[RawRecord | Reject] = []
    pages = size = 0
    for item in items:
        waiting.append(item)
        if isinstance(item, RawRecord):
            pages, size = pages + isinstance(item.content, bytes), size + len(item.content)
        if not pages or pages == BATCH_PAGES or size >= BATCH_BYTES or len(waiting) == BATCH_RECORDS:
            yield waiting
            waiting, pages, size = [], 0, 0
    if waiting:
        yield waiting


def _page(item: RawRecord | Reject) -> Page | None:
    if isinstance(item, RawRecord) and isinstance(item.content, bytes):
        return Page(item.content, item.charset, KIND_OF.get(item.mime, "html"))
    return None


def _merged(items: Records, answers: Iterator[Answer]) -> Iterator[RawRecord | Reject]:
    for item in items:
        if isinstance(item, Reject) or isinstance(item.content, str):
            yield item
            continue
        answer = next(answers)
        if isinstance(answer, ExtractionFailure):
            yield refuse(item, answer.reason, answer.detail)
        else:
            yield _with_text(item, answer)


def _with_text(page: RawRecord, answer: Text) -> RawRecord:
    extra = joined(page.extra, answer.facts)
    for name in ADDRESSES:
        if written := extra.get(name):
            extra[name] = _absolute(written, page.uri)
            if not extra[name]:
                del extra[name]
    # All fields by name: `dataclasses.replace` takes twice as long, and this is done for every page.
    return RawRecord(
        uri=page.uri,
        content=answer.text,
        mime=page.mime,
        licence=page.licence if page.licence != UNKNOWN else spdx(extra.get(REL_LICENSE, "")) or UNKNOWN,
        source_bytes=page.source_bytes,
        where=page.where,
        captured_at=page.captured_at,
        unread_date=page.unread_date,
        repeated_id=page.repeated_id,
        extra=extra,
        file=page.file,
        sha256=page.sha256,
    )


def _absolute(address: str, page: str) -> str:
    """An address as a page writes it, from the page's own; empty where that gives none of the web."""
    if not address.startswith(WEB):
        try:
            address = urljoin(page, address)
        except ValueError:
            return ""
    return address if address.startswith(WEB) else ""
