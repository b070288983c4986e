"""A page, what came out of it, and the byte format between parent and child.

Plain lengths and UTF-8, never pickle: what a hostile page may have made of the child is not to be executed
by the parent.

    greeting   READY, once, when the engine is loaded
    request    count, then per page: length of charset, length of body, charset, body
    answer     per page: status, length of facts, length of text, facts (JSON object), text
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

READY = b"ready"
COUNT = struct.Struct("<I")
PAGE = struct.Struct("<II")
ANSWER = struct.Struct("<BII")
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
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why no text came out: a reject's reason and detail."""

    reason: str
    detail: str


def write_request(stream: IO[bytes], pages: Sequence[Page]) -> None:
    """Send a batch of pages."""
    stream.write(COUNT.pack(len(pages)))
    for page in pages:
        charset = page.charset.encode("ascii", "ignore")
        stream.write(PAGE.pack(len(charset), len(page.body)))
        stream.write(charset)
        stream.write(page.body)
    stream.flush()


def read_request(stream: IO[bytes]) -> list[Page] | None:
    """Receive a batch of pages, or None when the parent has gone."""
    try:
        (count,) = COUNT.unpack(_exactly(stream, COUNT.size))
        pages = []
        for _ in range(count):
            charset_bytes, body_bytes = PAGE.unpack(_exactly(stream, PAGE.size))
            charset = _exactly(stream, charset_bytes).decode("ascii")
            pages.append(Page(_exactly(stream, body_bytes), charset))
        return pages
    except EOFError:
        return None


def write_answer(stream: IO[bytes], answer: Text | Failure) -> None:
    """Send what came out of one page."""
    if isinstance(answer, Text):
        status, facts, text = 0, dict(answer.facts), answer.text
    else:
        status, facts, text = REASONS.index(answer.reason), {}, answer.detail
    header, body = json.dumps(facts).encode(), text.encode("utf-8", "replace")
    stream.write(ANSWER.pack(status, len(header), len(body)) + header + body)
    stream.flush()


def read_answer(stream: IO[bytes]) -> Text | Failure:
    """Receive what came out of one page.

    Raises:
        EOFError: when the child has gone.
    """
    status, facts_bytes, text_bytes = ANSWER.unpack(_exactly(stream, ANSWER.size))
    facts = json.loads(_exactly(stream, facts_bytes))
    text = _exactly(stream, text_bytes).decode()
    return Failure(REASONS[status], text) if status else Text(text, facts)


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


Extract = Callable[[str], Text]
