"""Text out of PDF, by PDFium: paragraphs (`pdf_lines`), pages apart, tables as rows of words.

A form feed stands between pages; what it cuts is mended when the text is normalised (`documents.boundaries`). Scans
without a layer of text give none.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from plinth.corpus.extract.page import FACT_CHARACTERS, ExtractionFailure, Text
from plinth.corpus.extract.pdf_lines import page_text, without_breaks

#: A text of more characters, or a file of more pages, is a failure: the limit of time is by page.
MOST_CHARACTERS, MOST_PAGES = 64 * 2**20, 20_000
#: PDFium's errors for a wrong password, and for a way to encrypt that it does not know.
_LOCKED = (4, 5)
_DAY = re.compile(r"D:(\d{4})(\d{2})(\d{2})")


def pdf_text(body: bytes, begins: Callable[[], None]) -> Text | ExtractionFailure:
    """Text of all pages, title and day of creation.

    Args:
        begins: called before every page, so that its time is its own.
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
