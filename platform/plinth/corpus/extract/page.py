"""A page, the answer to it, and the bytes of both between the process that reads pages and its worker.

Plain lengths and UTF-8, never pickle: a hostile page may control the worker, and the owner must not execute its
bytes.

    page       kind; length of charset; charset; body
    answer     status, length of text, length of each fact; text and facts that are there
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from plinth.corpus.sources.signals import DIRECTIVES, REL_LICENSE, TDM_POLICY

CHARSET_BYTES = 255
#: Metadata of a page, by the names in a document's `extra`, each of at most so many characters.
FACTS = ("title", "canonical", "date", "lang", DIRECTIVES, TDM_POLICY, REL_LICENSE)
FACT_CHARACTERS = 500
ANSWER = struct.Struct(f"<BI{len(FACTS)}H")
#: Status of an answer: text came out, or one of these reasons.
REASONS = ("", "extract_failed", "nul_bytes", "encrypted")


#: How a page is read, by the media type of its record; all else is HTML.
KINDS = ("html", "pdf", "latex")
KIND_OF = {"application/pdf": "pdf", "text/x-tex": "latex"}


@dataclass(frozen=True, slots=True)
class Page:
    """Undecoded HTML and the character set its server declared, if any; or a whole file of another kind."""

    body: bytes
    charset: str = ""
    kind: str = KINDS[0]


@dataclass(frozen=True, slots=True)
class Text:
    """Main content, and title, canonical address, date, language and signals on its use where the page gives them."""

    text: str
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExtractionFailure:
    """Why no text came out: a reject's reason and detail."""

    reason: str
    detail: str


_NO_FACTS = (0,) * len(FACTS)
Answer = Text | ExtractionFailure
#: HTML -> main content, and the title where there is one.
Extract = Callable[[str], tuple[str, str | None]]


def page_bytes(page: Page) -> bytes:
    """A page as bytes."""
    charset = page.charset.encode("ascii", "ignore")[:CHARSET_BYTES]
    return b"".join((KINDS.index(page.kind).to_bytes(), len(charset).to_bytes(), charset, page.body))


def page_of(data: memoryview) -> Page:
    """The page of `page_bytes`, copied out."""
    start = 2 + data[1]
    return Page(bytes(data[start:]), str(data[2:start], "ascii"), KINDS[data[0]])


def answer_bytes(answer: Answer) -> bytes:
    """The answer to one page as bytes."""
    if isinstance(answer, ExtractionFailure):
        detail = answer.detail.encode("utf-8", "replace")
        return ANSWER.pack(REASONS.index(answer.reason), len(detail), *_NO_FACTS) + detail
    text = answer.text.encode("utf-8", "replace")
    facts = [answer.facts.get(name, "").encode("utf-8", "replace") for name in FACTS]
    return b"".join((ANSWER.pack(0, len(text), *map(len, facts)), text, *facts))


def answer_of(data: bytes) -> Answer:
    """The answer of `answer_bytes`."""
    status, text_bytes, *facts_bytes = ANSWER.unpack_from(data)
    at = ANSWER.size + text_bytes
    text = str(data[ANSWER.size : at], "utf-8")
    if status:
        return ExtractionFailure(REASONS[status], text)
    facts = {}
    for name, size in zip(FACTS, facts_bytes, strict=True):
        if size:
            facts[name] = str(data[at : at + size], "utf-8")
            at += size
    return Text(text, facts)
