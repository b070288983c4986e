"""Fallback of a fast engine: a slow engine reads the articles on which the fast engine is unsure.

The slow text is taken only if both texts agree to some extent. Otherwise the slow engine does not read the page well
either, and the fast text stays.
"""

from __future__ import annotations

import re
from collections import Counter

from plinth.corpus.extract.page import SLOW, UNSURE, UNSURE_ABOVE, Extract, MainContent

#: Minimum F1 of the words of both texts. Raise `documents.VERSION` if it changes, or `UNSURE_ABOVE`.
AGREEMENT = 0.5
_WORD = re.compile(r"\w+")


def with_fallback(fast: Extract, slow: Extract) -> Extract:
    """Return an engine that reads an article again with `slow` if `fast` is unsure."""

    def extract(html: str) -> MainContent:
        first = fast(html)
        if not first.article or first.unsure <= UNSURE_ABOVE:
            return first
        try:
            second = slow(html)
        except Exception:  # the page has a text already
            return first._replace(route=UNSURE)
        if agreement(first.text, second.text) < AGREEMENT:
            return first._replace(route=UNSURE)
        return MainContent(second.text, first.title, route=SLOW)

    return extract


def agreement(text: str, other: str) -> float:
    """Return the F1 of the words of two texts."""
    a, b = (Counter(_WORD.findall(each.lower())) for each in (text, other))
    total = a.total() + b.total()
    return 2 * (a & b).total() / total if total else 1.0
