"""`Extractor`, which sends batches of pages to a worker and converts a worker's death to a failure of the page."""

from __future__ import annotations

import signal
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from urllib.parse import urljoin

from plinth.compute.worker import Death, ItemStream, Program
from plinth.corpus.extract.page import (
    KIND_OF,
    SLOW,
    UNSURE,
    Answer,
    ExtractionFailure,
    Page,
    Text,
    answer_of,
    page_bytes,
)
from plinth.corpus.sources.inventory import UNKNOWN
from plinth.corpus.sources.parameters import Extraction
from plinth.corpus.sources.record import RawRecord, Reject, refuse
from plinth.corpus.sources.times import REL_LICENSE, TDM_POLICY, joined, spdx

HANDLER = "plinth.corpus.extract.worker:extracting"
#: For glibc: memory of one page serves the next instead of going back to the kernel each time.
KEEP_MEMORY = (("MALLOC_MMAP_THRESHOLD_", str(2**28)), ("MALLOC_TRIM_THRESHOLD_", str(2**28)))
#: Idle timeout of a worker, to free its memory.
IDLE_S = 15.0
#: One batch of ordinary pages fits.
PIPE_BYTES = 1 << 20


class Extractor:
    """Extractor of main content from pages. Use it as a context manager.

    Args:
        params: engine, and maximum CPU seconds per page.
        model: model file of the engine `blocks`; if None, the default model is used.
    """

    def __init__(self, params: Extraction, model: Path | None = None) -> None:
        self.params = params
        arguments = params.engine, str(params.seconds_per_page), *([str(model)] if model else [])
        fast, _, fallback = params.engine.partition("+")
        #: Extractor without the fallback, for pages that kill the worker.
        self.fast = Extractor(params.model_copy(update={"engine": fast}), model) if fallback else None
        self._stream = ItemStream(Program(HANDLER, arguments, KEEP_MEMORY, IDLE_S, PIPE_BYTES, quiet=True))

    def __enter__(self) -> Extractor:
        self._stream.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stream.__exit__(kind, error, tb)
        if self.fast is not None:
            self.fast.__exit__(kind, error, tb)

    def extract(self, pages: Sequence[Page]) -> list[Answer]:
        """Return the answers to the pages of one batch, in order."""
        return next(self.map([pages]))

    def map(self, batches: Iterable[Sequence[Page]]) -> Iterator[list[Answer]]:
        """Yield the answers to the pages of each batch, in order. The next batch is read while the worker is busy.

        A page that kills the worker is read again without the fallback, if there is one. If it kills the worker then,
        its answer is a failure. Extraction continues with the following pages.

        Raises:
            WorkerError: the worker cannot be started.
        """
        sent: deque[Sequence[Page]] = deque()

        def items() -> Iterator[list[bytes]]:
            for pages in batches:
                sent.append(pages)
                yield [page_bytes(page) for page in pages]

        for answers in self._stream.map(items()):
            pages = sent.popleft()
            yield [
                self._failure(one, page) if isinstance(one, Death) else answer_of(one)
                for one, page in zip(answers, pages, strict=True)
            ]

    def _failure(self, death: Death, page: Page) -> Answer:
        if self.fast is not None and page.kind == "html":
            (answer,) = self.fast.extract([page])
            return replace(answer, route=UNSURE) if isinstance(answer, Text) else answer
        name = self.params.engine
        if death.over_limit:
            return ExtractionFailure(
                "extract_timeout", f"{name} took more than {self.params.seconds_per_page:g} s of CPU time"
            )
        status = death.status
        ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return ExtractionFailure("extract_failed", f"{name} died of the page: {ended}")


#: Maximum pages and bytes per batch sent to the extractor (a pipe takes these bytes at once), and maximum number of
#: records that wait for a page of the batch.
BATCH_PAGES, BATCH_BYTES, BATCH_RECORDS = 256, 900_000, 1024

#: Statistics of documents whose extraction has a fallback: pages, pages on which the engine was unsure, and pages with
#: the text of the fallback.
PAGES, UNSURE_PAGES, FALLBACK_PAGES = "pages", "unsure_pages", "fallback_pages"

WEB = ("http://", "https://")
#: Metadata that is an address, which pages may write relative to their own.
ADDRESSES = ("canonical", TDM_POLICY, REL_LICENSE)
Records = Sequence[RawRecord | Reject]


def extracted(
    items: Iterable[RawRecord | Reject], extractor: Extractor, counts: Counter[str]
) -> Iterator[RawRecord | Reject]:
    """Yield all records with their text. HTML pages are replaced by their main content. A page without main content
    becomes a reject.

    If the extractor has a fallback, `counts` receives `PAGES`, `UNSURE_PAGES` and `FALLBACK_PAGES`.

    Two batches are in memory: the extractor works on the next batch while the answers to the current batch are used.
    """
    sent: deque[Records] = deque()

    def pages() -> Iterator[list[Page]]:
        for batch in _batches(items):
            sent.append(batch)
            yield [page for item in batch if (page := _page(item))]

    for answers in extractor.map(pages()):
        if extractor.fast is not None and answers:
            routes = [answer.route for answer in answers if isinstance(answer, Text)]
            counts.update(
                {PAGES: len(answers), UNSURE_PAGES: len(routes) - routes.count(0), FALLBACK_PAGES: routes.count(SLOW)}
            )
        yield from _merged(sent.popleft(), iter(answers))


def _batches(items: Iterable[RawRecord | Reject]) -> Iterator[Records]:
    """Group records so that each group has one batch of pages. While no page is waiting, each record is yielded at once
    as a group of one."""
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
    """Resolve a link against the URL of its page. Return an empty text if the result is not a web address."""
    if not address.startswith(WEB):
        try:
            address = urljoin(page, address)
        except ValueError:
            return ""
    return address if address.startswith(WEB) else ""
