"""Fallback of the engine `blocks`: a slow engine votes on the blocks of articles on which the model is unsure.

Its text is used only if both texts agree to some extent. Otherwise the slow engine does not read the page well either.
The text is always written by `blocks`, so that paragraphs, lists and tables have one form in all documents.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from plinth.corpus.extract.content.engine import BlockEngine
from plinth.corpus.extract.content.learner import BlockReader, labels
from plinth.corpus.extract.page import SLOW, UNSURE, Extract, MainContent

#: Value of `MainContent.unsure` above which the slow engine is asked, minimum F1 of the words of both texts, and log-odds
#: of its vote. Raise `documents.VERSION` if they change.
ASKED_ABOVE, AGREEMENT, VOTE = 0.05, 0.5, 2.0
_WORD = re.compile(r"\w+")


def with_fallback(fast: BlockEngine, slow: Extract) -> Extract:
    """Return an engine that asks `slow` about an article if `fast` is unsure."""
    read = BlockReader()

    def extract(html: str) -> MainContent:
        first = fast(html)
        if not first.article or first.unsure <= ASKED_ABOVE:
            return first
        try:
            second = slow(html).text
        except Exception:  # the page has a text already
            return first._replace(route=UNSURE)
        if agreement(first.text, second) < AGREEMENT:
            return first._replace(route=UNSURE)
        shares = np.nan_to_num(labels(read(html).texts, second), nan=0.5)
        return fast(html, ((2 * shares - 1) * VOTE).astype(np.float32))._replace(route=SLOW)

    return extract


def agreement(text: str, other: str) -> float:
    """Return the F1 of the words of two texts."""
    a, b = (Counter(_WORD.findall(each.lower())) for each in (text, other))
    total = a.total() + b.total()
    return 2 * (a & b).total() / total if total else 1.0
