"""The child process: `python -m plinth.corpus.extract.child ENGINE SECONDS`, pages in, answers out.

Before each page two kernel timers are armed whose signals end the process: CPU time at the limit, so that a
busy machine does not change what is rejected, and wall clock well above it, for a page that sleeps. They
also end a child whose parent was killed while it was inside a page.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

from plinth.corpus.extract.engines import decode, engine
from plinth.corpus.extract.page import READY, Extract, Failure, Page, Text, read_request, write_answer

MEMORY_BYTES = 4 * 2**30
WALL_FACTOR, WALL_FLOOR_S = 10, 30


def main(name: str, seconds: float) -> None:
    """Serve until the parent closes its end."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    requests = os.fdopen(os.dup(0), "rb", buffering=1 << 16)
    answers = os.fdopen(os.dup(1), "wb", buffering=1 << 16)
    os.dup2(2, 1)  # a library that prints must not write into the answers
    extract = engine(name)
    answers.write(READY)
    answers.flush()
    while (pages := read_request(requests)) is not None:
        for page in pages:
            _arm(seconds)
            answer = _answer(extract, page)
            _arm(0)
            write_answer(answers, answer)


def _answer(extract: Extract, page: Page) -> Text | Failure:
    try:
        html = decode(page.body, page.charset)
        if "\0" in html:
            return Failure("nul_bytes", f"NUL at character {html.index(chr(0))} of the decoded page")
        return extract(html)
    except BaseException as error:  # a panic of Rust code is no Exception
        return Failure("extract_failed", f"{type(error).__name__}: {error}")


def _arm(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, max(WALL_FLOOR_S, seconds * WALL_FACTOR) if seconds else 0)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
