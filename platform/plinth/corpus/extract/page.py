"""A page, the answer to it, and the byte format between parent and child.

Plain lengths and UTF-8, never pickle: a hostile page may control the child, and the parent must not execute its
bytes.

    greeting   READY, once, when the engine is loaded
    request    count, bytes that follow; a table of (length of charset, length of body); then charset and body of each
    answer     status, length of text, length of each fact; text and facts that are there
    counts     in shared memory: pages that the child has begun to read, and pages that it has done with

Answers follow each other in the order of the pages, with nothing between batches.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

READY = b"ready"
REQUEST = struct.Struct("<IQ")
PAGE = struct.Struct("<II")
#: Metadata of a page, by the names in a document's `extra`, each of at most so many characters.
FACTS = ("title", "canonical", "date", "lang")
FACT_CHARACTERS = 500
ANSWER = struct.Struct(f"<BI{len(FACTS)}H")
COUNTS = struct.Struct("=QQ")
#: Status of an answer: text came out, or one of these reasons.
REASONS = ("", "extract_failed", "nul_bytes")


@dataclass(frozen=True, slots=True)
class Page:
    """Undecoded HTML and the character set its server declared, if any."""

    body: bytes
    charset: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """Main content, and title, canonical address, date and language where the page gives them."""

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


def request(pages: Sequence[Page]) -> bytes:
    """A batch of pages as bytes."""
    charsets = [page.charset.encode("ascii", "ignore") for page in pages]
    table = b"".join(PAGE.pack(len(charset), len(page.body)) for charset, page in zip(charsets, pages, strict=True))
    pieces = [table]
    for charset, page in zip(charsets, pages, strict=True):
        pieces += (charset, page.body)
    return b"".join((REQUEST.pack(len(pages), sum(map(len, pieces))), *pieces))


def requested(count: int, data: memoryview) -> Iterator[Page]:
    """The `count` pages of a request's bytes after its head, copied out one at a time."""
    at = count * PAGE.size
    for charset_bytes, body_bytes in PAGE.iter_unpack(data[:at]):
        charset = str(data[at : at + charset_bytes], "ascii") if charset_bytes else ""
        at += charset_bytes + body_bytes
        yield Page(bytes(data[at - body_bytes : at]), charset)


def answer_bytes(answer: Answer) -> bytes:
    """The answer to one page as bytes."""
    if isinstance(answer, ExtractionFailure):
        detail = answer.detail.encode("utf-8", "replace")
        return ANSWER.pack(REASONS.index(answer.reason), len(detail), *_NO_FACTS) + detail
    text = answer.text.encode("utf-8", "replace")
    facts = [answer.facts.get(name, "").encode("utf-8", "replace") for name in FACTS]
    return b"".join((ANSWER.pack(0, len(text), *map(len, facts)), text, *facts))


def answered(data: bytearray) -> list[Answer]:
    """The whole answers at the front of what has been received, taken off it."""
    found: list[Answer] = []
    at = 0
    with memoryview(data) as view:
        while len(data) - at >= ANSWER.size:
            status, text_bytes, *facts_bytes = ANSWER.unpack_from(data, at)
            start = at + ANSWER.size
            at_facts = start + text_bytes
            end = at_facts + sum(facts_bytes)
            if len(data) < end:
                break
            text, at = str(view[start:at_facts], "utf-8"), end
            if status:
                found.append(ExtractionFailure(REASONS[status], text))
                continue
            facts = {}
            for name, size in zip(FACTS, facts_bytes, strict=True):
                if size:
                    facts[name] = str(view[at_facts : at_facts + size], "utf-8")
                    at_facts += size
            found.append(Text(text, facts))
    del data[:at]
    return found
