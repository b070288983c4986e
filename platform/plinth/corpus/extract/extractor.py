"""`Extractor`: batches of pages to a worker and back, and why a page gave no text."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType

from plinth.compute.item_stream import Death, ItemStream
from plinth.compute.worker import Program
from plinth.corpus.extract.page import Answer, ExtractionFailure, Page, answer_of, page_bytes
from plinth.corpus.sources.parameters import Extraction

HANDLER = "plinth.corpus.extract.handler:extracting"
#: For glibc: memory of one page serves the next instead of going back to the kernel each time.
KEEP_MEMORY = (("MALLOC_MMAP_THRESHOLD_", str(2**28)), ("MALLOC_TRIM_THRESHOLD_", str(2**28)))
#: A worker without pages for so long ends, to free its memory.
IDLE_S = 15.0
#: One batch of ordinary pages fits.
PIPE_BYTES = 1 << 20


class Extractor:
    """Main content of pages. Use as a context manager.

    Args:
        params: engine and seconds of CPU time per page.
    """

    def __init__(self, params: Extraction) -> None:
        self.params = params
        arguments = params.engine, str(params.seconds_per_page)
        self._stream = ItemStream(Program(HANDLER, arguments, KEEP_MEMORY, IDLE_S, PIPE_BYTES, quiet=True))

    def __enter__(self) -> Extractor:
        self._stream.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stream.__exit__(kind, error, tb)

    def extract(self, pages: Sequence[Page]) -> list[Answer]:
        """The answer to each page, in order: `map` of one batch."""
        return next(self.map([pages]))

    def map(self, batches: Iterable[Sequence[Page]]) -> Iterator[list[Answer]]:
        """The answers to the pages of each batch, in order; the next batch is read while the worker works.

        A page that kills the worker is a failure; the rest go on.

        Raises:
            WorkerError: when the worker cannot even start.
        """
        for answers in self._stream.map([page_bytes(page) for page in pages] for pages in batches):
            yield [self._failure(one) if isinstance(one, Death) else answer_of(one) for one in answers]

    def _failure(self, death: Death) -> ExtractionFailure:
        name = self.params.engine
        if death.over_limit:
            return ExtractionFailure(
                "extract_timeout", f"{name} took more than {self.params.seconds_per_page:g} s of CPU time"
            )
        status = death.status
        ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return ExtractionFailure("extract_failed", f"{name} died of the page: {ended}")
