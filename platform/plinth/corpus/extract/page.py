"""A page, what came out of it, and the byte format between parent and child.

Plain lengths and UTF-8, never pickle: what a hostile page may have made of the child is not to be executed
by the parent.

    greeting   READY, once, when the engine is loaded
    request    count, bytes that follow; a table of (length of charset, length of body); then charset and body of each
    answer     status, length of facts, length of text; facts (JSON object), text
    counts     in shared memory: pages that the child has begun to read, and pages that it has done with

Answers follow each other in the order of the pages, with nothing between batches.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

READY = b"ready"
REQUEST = struct.Struct("<IQ")
PAGE = struct.Struct("<II")
ANSWER = struct.Struct("<BII")
COUNTS = struct.Struct("=QQ")
#: Status of an answer: text came out, or one of these reasons.
REASONS = ("", "extract_failed", "nul_bytes")
#: The facts of an answer that has none.
NO_FACTS = b"{}"


@dataclass(frozen=True, slots=True)
class Page:
    """Undecoded HTML and the character set its server declared, if any."""

    body: bytes
    charset: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """Main content, and title, canonical address, date and language where the page gives them."""

    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why no text came out: a reject's reason and detail."""

    reason: str
    detail: str


Answer = Text | Failure
Extract = Callable[[str], Text]


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
        body = at + charset_bytes
        yield Page(bytes(data[body : body + body_bytes]), bytes(data[at:body]).decode("ascii"))
        at = body + body_bytes


def answer_bytes(answer: Answer) -> bytes:
    """What came out of one page as bytes."""
    if isinstance(answer, Text):
        status, text = 0, answer.text
        facts = json.dumps(dict(answer.facts)).encode() if answer.facts else NO_FACTS
    else:
        status, text, facts = REASONS.index(answer.reason), answer.detail, NO_FACTS
    body = text.encode("utf-8", "replace")
    return ANSWER.pack(status, len(facts), len(body)) + facts + body


def answered(data: bytearray) -> Iterator[Answer]:
    """The whole answers at the front of what has been received; they are taken off it at the end."""
    at = 0
    while len(data) - at >= ANSWER.size:
        status, facts_bytes, text_bytes = ANSWER.unpack_from(data, at)
        body = at + ANSWER.size + facts_bytes
        if len(data) < body + text_bytes:
            break
        text = data[body : body + text_bytes].decode()
        yield Failure(REASONS[status], text) if status else Text(text, json.loads(data[body - facts_bytes : body]))
        at = body + text_bytes
    del data[:at]
