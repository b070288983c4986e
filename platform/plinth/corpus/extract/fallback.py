"""Fallback of the engine `blocks`: a slow engine votes on the blocks of articles on which the model is unsure.

The slow engine reads the page without the elements that the model is sure are not content. Its text is used only if
both texts agree to some extent: where the model is nearly sure, to a large extent. Otherwise the slow engine does not
read the page well either. The text is always written by `blocks`, so that paragraphs, lists and tables have one form in
all documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from plinth.corpus.extract.content.engine import BlockEngine
from plinth.corpus.extract.content.learner import SHINGLE, labels, words
from plinth.corpus.extract.page import SLOW, UNSURE, Extract, MainContent
from plinth_text.arrays import F32

#: Value of `MainContent.unsure` above which the slow engine reads the page.
ASKED_ABOVE = 0.1
#: Value of `MainContent.unsure` up to which the model is nearly sure, and minimum F1 of the words of both texts, then
#: and otherwise.
NEARLY_SURE, NEARLY_SURE_AGREEMENT, AGREEMENT = 0.2, 0.8, 0.5
#: Log-odds of a vote for a block and against it. Raise `documents.VERSION` if these numbers change.
FOR, AGAINST = 2.5, 6.0


def with_fallback(fast: BlockEngine, slow: Extract) -> Callable[[str | bytes], MainContent]:
    """Return an engine that asks `slow` about an article if `fast` is unsure."""

    def extract(html: str | bytes) -> MainContent:
        first = fast(html)
        if not first.article or first.unsure <= ASKED_ABOVE:
            return first
        try:
            page = fast.shortened(html, 2 * FOR)  # no vote brings back what is left out, nor do two
            second = slow(page.html).text
        except Exception:  # the page has a text already
            return first._replace(route=UNSURE)
        agreed = agreement(first.text, second)
        if agreed < (NEARLY_SURE_AGREEMENT if first.unsure <= NEARLY_SURE else AGREEMENT):
            return first._replace(route=UNSURE)
        found = fast(html, votes(page.texts, second))  # votes may err: half of the first doubt stays
        return found._replace(route=SLOW, unsure=max((first.unsure + found.unsure) / 2, 1 - agreed))

    return extract


def votes(texts: Sequence[str], second: str) -> F32:
    """Return a vote for each block by the share of it that is in the second text. Short blocks have none: their words
    are in the text by chance, or in another form."""
    shares = 2 * np.nan_to_num(labels(texts, second), nan=0.5) - 1
    short = np.array([len(words(text)) < SHINGLE for text in texts], bool)
    return np.where(short, 0, np.where(shares > 0, FOR, AGAINST) * shares).astype(np.float32)


def agreement(text: str, other: str) -> float:
    """Return the F1 of the words of two texts."""
    a, b = Counter(words(text)), Counter(words(other))
    total = a.total() + b.total()
    return 2 * (a & b).total() / total if total else 1.0
