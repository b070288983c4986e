"""Text out of PDF, by PDFium: lines as they stand, pages apart, tables as rows of words.

A form feed stands between pages; what it cuts is mended when the text is normalised (`documents.boundaries`). Scans
without a layer of text give none.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from plinth.corpus.extract.page import FACT_CHARACTERS, ExtractionFailure, Text

#: A text of more characters, or a file of more pages, is a failure: the limit of time is by page.
MOST_CHARACTERS, MOST_PAGES = 64 * 2**20, 20_000
#: PDFium writes a hyphen at a line's end as this.
_HYPHEN = "\ufffe"
_DAY = re.compile(r"D:(\d{4})(\d{2})(\d{2})")


def pdf_text(body: bytes, begins: Callable[[], None]) -> Text | ExtractionFailure:
    """Text of all pages, title and day of creation.

    Args:
        begins: called before every page, so that its time is its own.
    """
    import pypdfium2 as pdfium

    document = pdfium.PdfDocument(body)
    if len(document) > MOST_PAGES:
        return ExtractionFailure("extract_failed", f"{len(document)} pages, at most {MOST_PAGES}")
    pages, size = list[str](), 0
    for number in range(len(document)):
        begins()
        page = document[number]
        text = page.get_textpage()
        pages.append(text.get_text_range().replace(_HYPHEN, "-\n").replace("\f", "\n"))
        text.close()
        page.close()
        size += len(pages[-1])
        if size > MOST_CHARACTERS:
            return ExtractionFailure("extract_failed", f"more than {MOST_CHARACTERS} characters")
    return Text("\f".join(pages).replace("\r\n", "\n").replace("\0", ""), _facts(document.get_metadata_dict()))


def _facts(metadata: dict[str, str]) -> dict[str, str]:
    facts = {"title": " ".join(metadata.get("Title", "").split())[:FACT_CHARACTERS]}
    if day := _DAY.match(metadata.get("CreationDate", "")):
        facts["date"] = "-".join(day.groups())
    return {name: value for name, value in facts.items() if value}
