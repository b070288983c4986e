"""Main content out of HTML, in a process that can be killed.

    page      a page, what came out of it, and the byte format between the two processes
    engines   resiliparse and trafilatura: HTML text -> main content, title, canonical address, date
    child     the life of the child process: a CPU limit per page, set in the kernel
    guard     `Extractor`: sends batches to the child, replaces it when a page kills it

A parser written in C or Rust may loop for ever or overflow its stack on a hostile page, and nothing inside the
same process can stop it. The child arms a timer before each page whose signal ends it; the page it was on
becomes a reject and the pages after it go to a new child.
"""

from plinth.corpus.extract.guard import Extractor
from plinth.corpus.extract.page import Failure, Page, Text

__all__ = ["Extractor", "Failure", "Page", "Text"]
