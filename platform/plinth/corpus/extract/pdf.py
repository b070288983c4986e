"""Text of PDF files, extracted by PDFium. Lines are joined to paragraphs by their position on the page. Page boundaries
are marked, and tables become rows of words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from plinth.corpus.extract.page import FACT_CHARACTERS, ExtractionFailure, Text

# Text out of PDF, by PDFium: paragraphs, pages apart, tables as rows of words.
#
# A form feed separates pages; text that it cuts is fixed when the text is normalized (`documents.boundaries`). Scans
# without a layer of text give none.

#: Longer texts and files with more pages are failures, because the time limit applies to each page.
MOST_CHARACTERS, MOST_PAGES = 64 * 2**20, 20_000
#: PDFium's errors for a wrong password, and for a way to encrypt that it does not know.
_LOCKED = (4, 5)
_DAY = re.compile(r"D:(\d{4})(\d{2})(\d{2})")


def pdf_text(body: bytes, begins: Callable[[], None]) -> Text | ExtractionFailure:
    """Return the text of all pages of a PDF file, with its title and its day of creation.

    Args:
        begins: called before every page, so that each page has its own time limit.
    """
    import pypdfium2 as pdfium

    try:
        document = pdfium.PdfDocument(body)
    except pdfium.PdfiumError as error:
        if getattr(error, "err_code", None) in _LOCKED:
            return ExtractionFailure("encrypted", "opens only with a password or a certificate")
        raise
    if len(document) > MOST_PAGES:
        return ExtractionFailure("extract_failed", f"{len(document)} pages, at most {MOST_PAGES}")
    pages, size = list[str](), 0
    for number in range(len(document)):
        begins()
        page = document[number]
        text = page.get_textpage()
        pages.append(page_text(text).replace("\f", "\n"))
        text.close()
        page.close()
        size += len(pages[-1])
        if size > MOST_CHARACTERS:
            return ExtractionFailure("extract_failed", f"more than {MOST_CHARACTERS} characters")
    whole = without_breaks("\f".join(pages).replace("\r\n", "\n").replace("\0", ""))
    return Text(whole, _facts(document.get_metadata_dict()))


def _facts(metadata: dict[str, str]) -> dict[str, str]:
    facts = {"title": " ".join(metadata.get("Title", "").split())[:FACT_CHARACTERS]}
    if day := _DAY.match(metadata.get("CreationDate", "")):
        facts["date"] = "-".join(day.groups())
    return {name: value for name, value in facts.items() if value}


# Lines of a PDF's page into paragraphs, by where they stand on the page.
#
# Two lines are one paragraph where they have one size, the spacing of the page's lines and one left edge (but for the
# first line's indent and what hangs behind a bullet), and where the first is full: the next word had no room in it.
# Rows of tables, lines of code and verse, headings and short lines stay as they are. A larger space is a blank line.

#: PDFium writes a hyphen at a line's end as this.
HYPHEN = "\ufffe"
#: In heights of a line: differences of left edges that are none, indents, gaps inside a row of a table, the least
#: width of a column of prose, how far lines that are full may end from its edge.
SAME, INDENT, GAP, MIN_WIDTH, RAGGED = 0.3, 5.0, 1.5, 12.0, 3.0
#: In spacings of lines: within a paragraph, and with a blank line between.
CLOSE, APART = 1.2, 1.35
_ENDS = re.compile(r"\r\n|[\r\n\x02]|" + HYPHEN)
_BULLET = re.compile(r"\s*(?:[•◦▪‣∙·*–—-]|\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})[.)])\s")
_CODE = "<>{}()[]#/\\|$=+"
_FIRST_WORD = re.compile(r"\S+")
_UNSPACED = re.compile("[\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff00-\uff60]")
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")


@dataclass
class Line:
    """Line of text and its bounding box in points. `hyphen` is True if the line ends inside a word; `row` is True if
    the line has wide gaps."""

    text: str
    left: float
    right: float
    bottom: float
    height: float
    first: float
    hyphen: bool = False
    row: bool = False


def page_text(page: Any) -> str:
    """Return the text of a pypdfium2 text page, with one line per paragraph. Hyphens at line ends are marked by
    `HYPHEN`."""
    text = page.get_text_range()
    lines = list(_lines(page, text)) if len(text) == page.count_chars() else []
    if not lines:
        return str(text)
    _mark_rows(page, lines)
    spacing = _spacing(lines)
    out = [lines[0].text]
    for before, line in pairwise(lines):
        out.append(_between(before, line, lines, spacing) + line.text)
    return "".join(out)


def without_breaks(text: str) -> str:
    """Resolve the hyphens at line ends that `HYPHEN` marks. A hyphen is kept if the word also occurs with it in the
    text, and removed otherwise."""
    if HYPHEN not in text:
        return text
    words = {word.casefold() for word in _WORD.findall(text)}

    def joined(found: re.Match[str]) -> str:
        first, second = found[1], found[2]
        keep = not second[:1].islower() or not first.isalpha() or f"{first}-{second}".casefold() in words
        return f"{first}-{second}" if keep else first + second

    return re.sub(rf"(\w*){HYPHEN}(\w*)", joined, text)


def _lines(page: Any, text: str) -> Iterator[Line]:
    at = 0
    for end in [*_ENDS.finditer(text), None]:
        stop = end.start() if end else len(text)
        words = text[at:stop]
        start, last = at + len(words) - len(words.lstrip()), at + len(words.rstrip()) - 1
        if words.strip():
            boxes = [page.get_charbox(one, loose=True) for one in (start, (start + last) // 2, last)]
            left, right = boxes[0][0], boxes[2][2]
            bottom, top = median(box[1] for box in boxes), median(box[3] for box in boxes)  # of words in another font
            word = _FIRST_WORD.match(text, start)
            first = page.get_charbox(word.end() - 1, loose=True)[2] - left if word else 0.0
            hyphen = end is not None and end[0] in "\x02" + HYPHEN
            yield Line(words.strip(" "), left, right, bottom, top - bottom, first, hyphen)
        at = end.end() if end else stop


def _mark_rows(page: Any, lines: Sequence[Line]) -> None:
    """Mark lines that have wide gaps between runs of text."""
    at, edge = 0, None
    for number in range(page.count_rects()):
        left, bottom, right, top = page.get_rect(number)
        middle = (bottom + top) / 2
        while at < len(lines) and not lines[at].bottom <= middle <= lines[at].bottom + lines[at].height:
            at, edge = at + 1, None
            if at == len(lines):
                return
        if edge is not None and left - edge > GAP * lines[at].height:
            lines[at].row = True
        edge = right


def _spacing(lines: Sequence[Line]) -> float:
    """Return the median distance between adjacent lines of a page."""
    steps = [a.bottom - b.bottom for a, b in pairwise(lines)]
    within = [step for step, line in zip(steps, lines, strict=False) if 0.5 * line.height < step < 3 * line.height]
    return median(within) if within else 0.0


def _between(before: Line, line: Line, lines: Sequence[Line], spacing: float) -> str:
    """Return the separator of two lines. Inside a paragraph the separator is a hyphen, a space or nothing, otherwise
    one or two line ends."""
    step = before.bottom - line.bottom
    if _is_one(before, line, lines, spacing):
        if before.hyphen:
            return HYPHEN
        return "" if _UNSPACED.match(before.text[-1]) and _UNSPACED.match(line.text) else " "
    return ("-" if before.hyphen else "") + ("\n\n" if spacing and step > APART * max(spacing, line.height) else "\n")


def _is_one(before: Line, line: Line, lines: Sequence[Line], spacing: float) -> bool:
    height, step = before.height, before.bottom - line.bottom
    if before.row or line.row or (before.text[0] in _CODE and line.text[0] in _CODE):
        return False
    if height <= 0 or abs(line.height - height) > 0.15 * height:
        return False
    if not 0.5 * height < step <= CLOSE * max(spacing, height) or _BULLET.match(line.text):
        return False
    indent = line.left - before.left
    if indent > SAME * height and not (_BULLET.match(before.text) and indent < INDENT * height):
        return False
    if indent < -INDENT * height:
        return False
    edge = _edge(line, lines)
    return before.hyphen or (edge is not None and before.right + line.first + 0.2 * height > edge)


def _edge(line: Line, lines: Sequence[Line]) -> float | None:
    """Return the right edge of the column that contains the line, or None if fewer than two lines end near the same
    edge."""
    rights = sorted(one.right for one in lines if not one.row and abs(one.left - line.left) < INDENT * line.height)
    if len(rights) < 2 or rights[-1] - line.left < MIN_WIDTH * line.height:
        return None
    return rights[-1] if rights[-1] - rights[-2] < RAGGED * line.height else None
