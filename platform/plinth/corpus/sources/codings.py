"""HTTP bodies as archives keep them: transfer and content codings undone, character sets as headers name them.

Archivers keep the headers of codings that they have undone already, and servers declare wrong ones: a coding is undone
where the body can be of it. No more is inflated than a record may hold.
"""

from __future__ import annotations

import codecs
import io
import re
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from plinth.corpus.sources.streams import READ_BYTES, members

#: A page in more nested codings than this is hostile.
MAX_CODINGS = 4
MAGIC = {"gzip": b"\x1f\x8b", "x-gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
#: Size of a chunk, in hexadecimal, with extensions (RFC 9112, 7.1); many recipients take a bare line feed (2.2).
CHUNK_SIZE = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r?\n")
CHARSET = re.compile(r"""charset\s*=\s*["']?\s*([^\s"';,]+)""", re.I)
MARKS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
#: A body that begins so is in no coding whose streams have no mark of their own.
_MARKUP = re.compile(rb"(?:\xef\xbb\xbf)?\s*<[!?a-zA-Z]")


def decoded(headers: Any, body: bytes, max_bytes: int, partial_body: bool = False) -> bytes | str:
    """A body without chunking and compression, or a reject's reason; inflates no more than `max_bytes`.

    Args:
        partial_body: the archiver has cut it (`WARC-Truncated`): what can be read of it is the body.
    """
    for coding in _codings(headers):
        if not _looks(coding, body):
            continue
        pieces, size = list[bytes](), 0
        for piece in _undone(coding, body):
            if isinstance(piece, str):
                if partial_body and pieces:
                    break
                return piece
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                return "too_large"
        body = b"".join(pieces)
    return body


def charset(content_type: str) -> str:
    """The character set that a `Content-Type` names, in lower case; empty when it names none."""
    named = CHARSET.search(content_type)
    return named[1].lower() if named else ""


def text(body: bytes, named: str, partial_body: bool = False) -> str:
    """Plain text by its byte order mark, else by the character set named, else as UTF-8.

    Names are those of HTML (the Encoding Standard) and not of Python, among whose codecs are some that take time by
    the square of a text's length, and some that are no encoding of text. Of a body that the archiver has cut
    (`partial_body`) the last character may be cut, too.

    Raises:
        UnicodeDecodeError: it is not of that character set.
    """
    from resiliparse.parse.encoding import map_encoding_to_html5

    mark = next((mark for mark in MARKS if body.startswith(mark)), b"")
    declared = map_encoding_to_html5(named, fallback_utf8=False) if named and not mark else None
    decoder = codecs.getincrementaldecoder(MARKS.get(mark) or declared or "utf-8")()
    return decoder.decode(body[len(mark) :], final=not partial_body)


def _codings(headers: Any) -> list[str]:
    """The codings to undo, last applied first: those of the transfer, then those of the content (RFC 9110, 8.4)."""
    listed = [headers.get(name, "").lower() for name in ("Content-Encoding", "Transfer-Encoding")]
    named = [step.strip() for step in ",".join(listed).split(",") if step.strip() not in ("", "identity")]
    return named[::-1][:MAX_CODINGS]


def _looks(coding: str, body: bytes) -> bool:
    """Whether a body can be in a coding, by its first bytes."""
    if coding == "chunked":
        return CHUNK_SIZE.match(body) is not None
    if coding in ("br", "deflate"):
        return _MARKUP.match(body) is None
    return body.startswith(MAGIC.get(coding, b""))


def _undone(coding: str, body: bytes) -> Iterator[bytes | str]:
    """The pieces of a body without one coding; a reason where it is damaged; as it is where the coding is unknown."""
    from fastwarc.stream_io import BrotliReader, ZstdReader

    if coding in ("gzip", "x-gzip"):  # FastWARC does not report a member cut short
        yield from _gunzipped(body)
    elif coding == "deflate":
        yield from _inflated(body)
    elif coding == "chunked":
        yield from _joined(body)
    elif coding in ("br", "zstd"):
        try:
            stream = (BrotliReader if coding == "br" else ZstdReader)(io.BytesIO(body))
            yield from iter(lambda: bytes(stream.read(READ_BYTES)), b"")
        except OSError:
            yield "broken_record"
    else:
        yield body


def _gunzipped(body: bytes) -> Iterator[bytes | str]:
    for number, member in enumerate(members(io.BytesIO(body))):
        yield from iter(partial(member.read, READ_BYTES), b"")
        if member.fault:
            if not number or member.tell():  # what follows a whole member and is no other is not the page's
                yield member.fault.reason
            return


def _inflated(body: bytes) -> Iterator[bytes | str]:
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


def _joined(body: bytes) -> Iterator[bytes | str]:
    """The chunks of a body; the empty one at the end, which many archives lack, may be followed by anything."""
    at = 0
    while at < len(body):
        head = CHUNK_SIZE.match(body, at)
        size = int(head[1], 16) if head else -1
        if head is None or head.end() + size > len(body):
            yield from () if head is None else (body[head.end() :],)  # all that there is of a body cut by the archiver
            yield "broken_record"
            return
        if size == 0:
            return
        yield body[head.end() : head.end() + size]
        at = head.end() + size
        at += 2 if body.startswith(b"\r\n", at) else body.startswith(b"\n", at)
