"""HTTP bodies as archives keep them: transfer and content codings undone, character sets as headers name them.

Archivers keep the headers of codings that they have already undone, and servers declare wrong ones. So a coding is
undone only where the body decodes to its end, or clearly is in that coding; otherwise the body stays as it is. Blank
lines before an encoded body are skipped, as browsers do. No more is inflated than a record may hold.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from plinth.corpus.sources.media_types import is_text
from plinth.corpus.sources.streams import READ_BYTES, members

#: A page in more nested codings than this is hostile.
MAX_CODINGS = 4
MAGIC = {"gzip": b"\x1f\x8b", "x-gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
#: Size of a chunk, in hexadecimal, with extensions (RFC 9112, 7.1); many recipients take a bare line feed (2.2).
CHUNK_SIZE = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r?\n")
CHARSET = re.compile(r"""charset\s*=\s*["']?\s*([^\s"';,]+)""", re.I)
_MARKUP = re.compile(rb"(?:\xef\xbb\xbf)?\s*<[!?a-zA-Z]")
_LINE_END = re.compile(rb"\r?\n")
#: What may follow the empty chunk (RFC 9112, 7.1.2): trailer fields and a blank line.
_TRAILERS = re.compile(rb"(?:(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n]*\r?\n)+\r?\n)?\s*")
_BLANK = b" \t\r\n"


def decoded(headers: Any, body: bytes, max_bytes: int, partial_body: bool = False) -> bytes | str:
    """A body without chunking and compression, or a reject's reason; inflates no more than `max_bytes`.

    Args:
        partial_body: the archiver has cut it (`WARC-Truncated`): what can be read of it is the body.
    """
    for coding in _codings(headers):
        found = _without(coding, body, max_bytes, partial_body)
        if isinstance(found, str):
            return found
        body = found
    return body


def charset(content_type: str) -> str:
    """The character set that a `Content-Type` names, in lower case; empty when it names none."""
    named = CHARSET.search(content_type)
    return named[1].lower() if named else ""


def _codings(headers: Any) -> list[str]:
    """The codings to undo, last applied first: those of the transfer, then those of the content (RFC 9110, 8.4)."""
    given = [(name.lower(), value.lower()) for name, value in headers.items()]
    listed = [value for wanted in ("content-encoding", "transfer-encoding") for name, value in given if name == wanted]
    named = [step.strip() for step in ",".join(listed).split(",") if step.strip() not in ("", "identity")]
    return named[::-1][:MAX_CODINGS]


def _without(coding: str, body: bytes, max_bytes: int, partial_body: bool) -> bytes | str:
    """A body without one coding, the body as it is where it is not in that coding, or a reject's reason."""
    if coding == "chunked":
        return _unchunked(body, partial_body)
    start = body.lstrip(_BLANK)
    if coding in MAGIC:
        return _inflated(coding, start, max_bytes, partial_body) if start.startswith(MAGIC[coding]) else body
    if is_text(body) or _MARKUP.match(body):
        return body
    if coding not in ("br", "deflate"):
        return "broken_record"  # compressed in a way that is not known here
    found = _inflated(coding, body, max_bytes, partial_body)
    skips = found == "broken_record" and len(start) < len(body)
    return _inflated(coding, start, max_bytes, partial_body) if skips else found


def _unchunked(body: bytes, partial_body: bool) -> bytes | str:
    """The data of a chunked body, the body as it is where it does not decode to its end, or a reject's reason.

    Broken framing is damage only where the chunks are beyond doubt: a page or a compressed stream begins in the first
    one, or whole ones come before the one that is cut. A text whose first line reads as a size is a text.
    """
    start = body.lstrip(_BLANK)
    head = CHUNK_SIZE.match(start)
    if head is None:
        return body
    certain = start.startswith(tuple(MAGIC.values()), head.end()) or bool(_MARKUP.match(start, head.end()))
    chunks = list[bytes]()
    while head is not None and (size := int(head[1], 16)):
        at = head.end() + size
        chunks.append(start[head.end() : at])
        if at > len(start):
            cut_short = "broken_record" if certain or len(chunks) > 1 else body
            return b"".join(chunks) if partial_body else cut_short
        end = _LINE_END.match(start, at)
        at = end.end() if end else at
        if at == len(start):  # many archives lack the empty chunk at the end
            return b"".join(chunks)
        head = CHUNK_SIZE.match(start, at) if end or certain else None
    if head is None:
        return "broken_record" if certain else body
    after = start[head.end() :]
    ended = certain or (_TRAILERS.fullmatch(after) if chunks else not after.strip())
    return b"".join(chunks) if ended else body


def _inflated(coding: str, body: bytes, max_bytes: int, partial_body: bool) -> bytes | str:
    """A decompressed body, or a reject's reason."""
    pieces, size = list[bytes](), 0
    for piece in _decompressed(coding, body):
        if isinstance(piece, str):
            if partial_body and pieces:
                break
            return piece
        pieces.append(piece)
        size += len(piece)
        if size > max_bytes:
            return "too_large"
    return b"".join(pieces)


def _decompressed(coding: str, body: bytes) -> Iterator[bytes | str]:
    """The pieces of a decompressed body; a reject's reason where it is damaged."""
    from fastwarc.stream_io import BrotliReader, ZstdReader

    if coding in ("gzip", "x-gzip"):  # FastWARC does not report a member cut short
        yield from _gunzipped(body)
    elif coding == "deflate":
        yield from _deflated(body)
    else:
        try:
            stream = (BrotliReader if coding == "br" else ZstdReader)(io.BytesIO(body))
            yield from iter(lambda: bytes(stream.read(READ_BYTES)), b"")
        except OSError:
            yield "broken_record"


def _gunzipped(body: bytes) -> Iterator[bytes | str]:
    for number, member in enumerate(members(io.BytesIO(body))):
        yield from iter(partial(member.read, READ_BYTES), b"")
        if member.fault:
            if not number or member.tell():  # what follows a whole member and is no other is not the page's
                yield member.fault.reason
            return


def _deflated(body: bytes) -> Iterator[bytes | str]:
    """`deflate` is of zlib's format (RFC 9110, 8.4.1.2), but not a few servers send the bare stream."""
    framed = len(body) > 1 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0
    inflate = zlib.decompressobj(wbits=15 if framed else -15)
    pending = body
    try:
        while not inflate.eof:
            piece = inflate.decompress(pending, READ_BYTES)
            pending = inflate.unconsumed_tail
            if not piece and not inflate.eof and not pending:
                raise zlib.error("cut short")
            yield piece
    except zlib.error:
        yield "broken_record"
