"""The handler of an extraction worker: pages in, answers out.

CPU time is limited at the recipe's seconds per page (of PDF each page, of LaTeX a file), so that a busy machine does
not change what is rejected, and wall clock well above it, for a page that sleeps.
"""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator

from plinth.compute.worker_process import Handler, ItemWatch
from plinth.corpus.extract.engines import engine
from plinth.corpus.extract.page import Answer, Extract, ExtractionFailure, Page, Text, answer_bytes, page_of
from plinth.corpus.extract.page_metadata import page_facts
from plinth.corpus.sources.charsets import decode

#: A page that was read: its HTML, main content, title.
Read = tuple[str, str, str | None]
MEMORY_BYTES = 4 * 2**30
WALL_FACTOR, WALL_FLOOR_S = 10, 30
#: Pages whose metadata is read together, after their text: code that runs for a moment after a parser runs slowly,
#: because the processor's caches have lost it. No timer runs then: the work is bounded by the head's length, and calls
#: nothing that can hang.
BLOCK_PAGES, BLOCK_BYTES = 16, 1 << 17
#: Pages leave hardly any cyclic garbage; the collector would otherwise run every few pages.
GARBAGE_OBJECTS = 50_000


def extracting(watch: ItemWatch, name: str, seconds: str) -> Handler:
    """Main content by an engine, of pages as bytes.

    Args:
        name: engine.
        seconds: CPU time per page.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    gc.set_threshold(GARBAGE_OBJECTS)
    watch.limit(cpu_s=float(seconds), wall_s=max(WALL_FLOOR_S, float(seconds) * WALL_FACTOR))
    extract = engine(name)

    def handle(items: Iterator[memoryview]) -> Iterator[bytes]:
        for block in _blocks(items):
            pages = list[Read | Answer]()
            for page in block:
                watch.begin()
                pages.append(_read(extract, page) if page.kind == "html" else _whole(page, watch))
                watch.end()
            watch.stop()
            yield from map(_answer, pages)

    return handle


def _blocks(items: Iterator[memoryview]) -> Iterator[list[Page]]:
    block, size = list[Page](), 0
    for item in items:
        block.append(page_of(item))
        size += len(item)
        if len(block) == BLOCK_PAGES or size >= BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def _read(extract: Extract, page: Page) -> Read | ExtractionFailure:
    try:
        html = decode(page.body, page.charset, html=True)
        if "\0" in html:
            return ExtractionFailure("nul_bytes", f"NUL at character {html.index(chr(0))} of the decoded page")
        return html, *extract(html)
    except BaseException as error:  # a panic of Rust code is no Exception
        return ExtractionFailure("extract_failed", f"{type(error).__name__}: {error}")


def _whole(page: Page, watch: ItemWatch) -> Answer:
    """A document of another kind than HTML: its text and metadata at once."""
    try:
        if page.kind == "pdf":
            from plinth.corpus.extract.pdf import pdf_text

            return pdf_text(page.body, watch.renew)
        from plinth.corpus.extract.latex import latex_text

        return latex_text(decode(page.body, page.charset))
    except BaseException as error:  # pylatexenc goes as deep as its source does
        return ExtractionFailure("extract_failed", f"{type(error).__name__}: {error}")


def _answer(read: Read | Answer) -> bytes:
    if isinstance(read, ExtractionFailure | Text):
        return answer_bytes(read)
    html, text, title = read
    try:
        return answer_bytes(Text(text, page_facts(html, title)))
    except Exception as error:  # memory may run out here as well
        return answer_bytes(ExtractionFailure("extract_failed", f"{type(error).__name__}: {error}"))
