"""The child process: `python -m plinth.corpus.extract.child ENGINE SECONDS [COUNTS]`, pages in, answers out.

While a page is read two kernel timers run whose signals end the process: CPU time at the limit, so that a busy
machine does not change what is rejected, and wall clock well above it, for a page that sleeps. They also end a
child whose parent was killed while it was inside a page. Answers leave in batches, because every one that leaves
alone wakes the parent; the two counts in shared memory (pages begun, pages ended) identify the page that a dead child
was on.
"""

from __future__ import annotations

import gc
import mmap
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator

from plinth.corpus.extract.charset import decode
from plinth.corpus.extract.engines import engine
from plinth.corpus.extract.page import (
    COUNTS,
    READY,
    REQUEST,
    Extract,
    ExtractionFailure,
    Page,
    Text,
    answer_bytes,
    requested,
)
from plinth.corpus.extract.page_metadata import page_facts

#: A page that was read: its HTML, main content, title.
Read = tuple[str, str, str | None]
MEMORY_BYTES = 4 * 2**30
WALL_FACTOR, WALL_FLOOR_S = 10, 30
#: Setting a timer costs what a small page costs: they are set again once this share of the limit may be used up. A
#: page has the limit at least and this much more at most.
SLACK = 0.05
#: Pages whose metadata is read together, after their text: code that runs for a moment after a parser runs slowly,
#: because the processor's caches have lost it. No timer runs then: the work is bounded by the head's length, and calls
#: nothing that can hang.
BLOCK_PAGES, BLOCK_BYTES = 16, 1 << 17
#: Pages leave hardly any cyclic garbage; the collector would otherwise run every few pages.
GARBAGE_OBJECTS = 50_000
#: Answers kept back at most.
FLUSH_BYTES = 1 << 18
#: A child without requests for so long ends, to free its memory. The parent starts another when it needs one.
IDLE_S = 15.0


def main(name: str, seconds: float, counts: int = -1) -> None:
    """Serve until the parent closes its end or sends nothing for `IDLE_S`.

    Args:
        name: engine.
        seconds: CPU time per page.
        counts: file descriptor of the shared memory; none for a child started by hand.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # a library that prints must not write into the answers
    served = memoryview(mmap.mmap(counts, COUNTS.size)).cast("Q")
    extract, timers = engine(name), _Timers(seconds)
    gc.set_threshold(GARBAGE_OBJECTS)
    _write(answers, READY)
    while (batch := _request(requests)) is not None:
        held, size = list[bytes](), 0
        for block in _blocks(requested(*batch)):
            pages = list[Read | ExtractionFailure]()
            for page in block:
                timers.set()
                served[0] += 1
                pages.append(_read(extract, page))
                served[1] += 1
            timers.stop()
            held += map(_answer, pages)
            size += sum(map(len, held[-len(pages) :]))
            if size >= FLUSH_BYTES:
                _write(answers, b"".join(held))
                held, size = [], 0
        _write(answers, b"".join(held))


def _blocks(pages: Iterator[Page]) -> Iterator[list[Page]]:
    block, size = list[Page](), 0
    for page in pages:
        block.append(page)
        size += len(page.body)
        if len(block) == BLOCK_PAGES or size >= BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


class _Timers:
    """CPU time and wall clock of a page."""

    def __init__(self, seconds: float) -> None:
        self._limits = (signal.ITIMER_PROF, seconds), (signal.ITIMER_REAL, max(WALL_FLOOR_S, seconds * WALL_FACTOR))
        self._slack, self._set_at = seconds * SLACK, -float("inf")

    def set(self) -> None:
        # The wall clock runs no slower than CPU time, and reading it costs nothing.
        if time.perf_counter() - self._set_at > self._slack:
            for timer, limit in self._limits:
                signal.setitimer(timer, limit * (1 + SLACK))
            self._set_at = time.perf_counter()

    def stop(self) -> None:
        """While the parent is waited for, no page is to blame."""
        for timer, _ in self._limits:
            signal.setitimer(timer, 0)
        self._set_at = -float("inf")


def _read(extract: Extract, page: Page) -> Read | ExtractionFailure:
    try:
        html = decode(page.body, page.charset)
        if "\0" in html:
            return ExtractionFailure("nul_bytes", f"NUL at character {html.index(chr(0))} of the decoded page")
        return html, *extract(html)
    except BaseException as error:  # a panic of Rust code is no Exception
        return ExtractionFailure("extract_failed", f"{type(error).__name__}: {error}")


def _answer(read: Read | ExtractionFailure) -> bytes:
    if isinstance(read, ExtractionFailure):
        return answer_bytes(read)
    html, text, title = read
    try:
        return answer_bytes(Text(text, page_facts(html, title)))
    except Exception as error:  # memory may run out here as well
        return answer_bytes(ExtractionFailure("extract_failed", f"{type(error).__name__}: {error}"))


def _request(stream: int) -> tuple[int, memoryview] | None:
    """The next request, or None when the parent has gone or stays silent."""
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    if not poll.poll(IDLE_S * 1000):
        return None
    head = _exactly(stream, REQUEST.size)
    if head is None:
        return None
    count, size = REQUEST.unpack(head)
    data = _exactly(stream, size)
    return None if data is None else (count, data)


def _exactly(stream: int, size: int) -> memoryview | None:
    data, at = memoryview(bytearray(size)), 0
    while at < size:
        read = os.readv(stream, [data[at:]])
        if not read:
            return None
        at += read
    return data


def _write(stream: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(stream, left) :]


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:]))
