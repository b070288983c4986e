"""`Extractor`: batches of pages to the child and back; a child that a page kills is replaced."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType

from plinth.corpus.extract.page import Answer, ExtractionFailure, Page, request
from plinth.corpus.extract.process import SPARES, Child
from plinth.corpus.sources.parameters import Extraction
from plinth.errors import WorkerError

TIMERS = (signal.SIGPROF, signal.SIGALRM)
#: Batches with the child while the answers to an earlier one are used.
AHEAD = 1
#: A child that ends more often between pages was not killed by a page.
MAX_ENDS = 3


class Extractor:
    """Main content of pages. Use as a context manager.

    Args:
        params: engine and seconds of CPU time per page.
    """

    def __init__(self, params: Extraction) -> None:
        self.params = params
        self._child: Child | None = None
        #: Without an answer, in order; a failure stands where its page was. The child has all of the pages.
        self._open: deque[Page | ExtractionFailure] = deque()
        self._done: deque[Answer] = deque()
        self._first = 0  # the number of the first open page among those that this child was sent
        self._suspect: Page | None = None
        self._ends = 0

    def __enter__(self) -> Extractor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end() if self._open else SPARES.keep(child)
        self._open.clear()
        self._done.clear()

    def extract(self, pages: Sequence[Page]) -> list[Answer]:
        """The answer to each page, in order: `map` of one batch."""
        return next(self.map([pages]))

    def map(self, batches: Iterable[Sequence[Page]]) -> Iterator[list[Answer]]:
        """The answers to the pages of each batch, in order; the next batch is read while the child works.

        A page that kills the child is a failure; the rest go on. Memory is that of the batches of two turns.

        Raises:
            WorkerError: when the child cannot even start.
        """
        sizes: deque[int] = deque()
        for pages in batches:
            self._send(pages)
            sizes.append(len(pages))
            while len(sizes) > AHEAD or (sizes and not sizes[0]):
                yield self._answers(sizes.popleft())
        while sizes:
            yield self._answers(sizes.popleft())

    def _send(self, pages: Sequence[Page]) -> None:
        if not pages:
            return
        self._open.extend(pages)
        if self._child is None:
            self._start()
        else:
            self._child.send(request(pages))

    def _start(self) -> None:
        """A child with every open page."""
        self._child = SPARES.take(self.params)
        self._first, _ = self._child.begun_and_ended()
        self._child.send(request([item for item in self._open if isinstance(item, Page)]))

    def _answers(self, count: int) -> list[Answer]:
        self._settle()
        while len(self._done) < count:
            if self._child is None:
                self._start()
            assert self._child is not None
            try:
                for answer in self._child.receive():
                    self._open.popleft()
                    self._done.append(answer)
                    self._first, self._ends = self._first + 1, 0
                    if self._open and isinstance(self._open[0], ExtractionFailure):
                        self._settle()
            except EOFError:
                self._recover()
        return [self._done.popleft() for _ in range(count)]

    def _settle(self) -> None:
        """Move failures at the head of the open pages to the answers."""
        while self._open and isinstance(self._open[0], ExtractionFailure):
            self._done.append(self._open.popleft())  # type: ignore[arg-type]

    def _recover(self) -> None:
        """After a death: the page it was on fails if its timer rang or if it was suspected before; all others are sent
        again, answered ones among them whose answers died with the child."""
        assert self._child is not None
        child, self._child = self._child, None
        begun, ended = child.begun_and_ended()
        code = child.died()
        pages = [index for index, item in enumerate(self._open) if isinstance(item, Page)]
        at = begun - 1 - self._first
        if begun != ended and 0 <= at < len(pages):
            victim = self._open[pages[at]]
            if -code in TIMERS or victim == self._suspect:
                self._open[pages[at]], self._suspect = _failure(code, self.params), None
            else:
                # The machine may have killed the child for reasons of its own: the page is tried once more.
                self._suspect = victim  # type: ignore[assignment]
        else:
            self._ends += 1
            if self._ends > MAX_ENDS:
                raise WorkerError(
                    f"the extraction process ({self.params.engine}) keeps ending between pages",
                    found=f"exit status {code}, {self._ends} times without an answer",
                    expected="a process that stays while there are pages",
                    remedy="look for what ends it: the out-of-memory killer, a limit on processes",
                )
        self._settle()


def _failure(code: int, params: Extraction) -> ExtractionFailure:
    if -code in TIMERS:
        return ExtractionFailure(
            "extract_timeout", f"{params.engine} took more than {params.seconds_per_page:g} s of CPU time"
        )
    name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    return ExtractionFailure("extract_failed", f"{params.engine} died of the page: {name}")
