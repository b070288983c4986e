"""GPT-3's rule for a document that shares n-grams with held-out text (Brown et al. 2020, appendix C).

Every match is removed with 200 characters on both sides; what is left between the matches are pieces. A piece of fewer
than 200 characters is removed too; a document that falls into more than 10 pieces is dropped. Here a cut is widened to
the next white space, so that no half word stays, and the pieces stay one document, an empty line apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

WINDOW, LEAST_PIECE, MOST_PIECES = 200, 200, 10
REASON, SEAM = "contaminated", "\n\n"

Span = tuple[int, int]


def cuts(text: str, matches: Iterable[Span]) -> list[Span] | None:
    """The spans to cut, or None where the document is to be dropped.

    Args:
        matches: code points of the shared n-grams, half open, at least one.

    Returns:
        code points, half open, sorted and disjoint.
    """
    removed = list(_joined(_widened(text, start - WINDOW, end + WINDOW) for start, end in sorted(matches)))
    bounds = [0, *(at for span in removed for at in span), len(text)]
    pieces = [(start, end) for start, end in zip(bounds[::2], bounds[1::2], strict=True) if text[start:end].strip()]
    kept = [(start, end) for start, end in pieces if end - start >= LEAST_PIECE]
    if len(pieces) > MOST_PIECES or not kept:
        return None
    bounds = [0, *(at for span in kept for at in span), len(text)]
    return [(start, end) for start, end in zip(bounds[::2], bounds[1::2], strict=True) if start < end]


def _widened(text: str, start: int, end: int) -> Span:
    start, end = max(0, start), min(len(text), end)
    while start > 0 and not text[start - 1].isspace():
        start -= 1
    while end < len(text) and not text[end].isspace():
        end += 1
    return start, end


def _joined(spans: Iterable[Span]) -> Iterator[Span]:
    """Spans in order of their starts, those that touch or overlap as one."""
    held: Span | None = None
    for start, end in spans:
        if held is not None and start <= held[1]:
            held = held[0], max(held[1], end)
            continue
        if held is not None:
            yield held
        held = start, end
    if held is not None:
        yield held
