"""HTTP bodies as archives keep them: transfer and content codings undone, character sets as headers name them.

Archivers keep the headers of codings that they have already undone, and servers declare wrong ones. So a coding is
undone only where the body decodes to its end, or clearly is in that coding; otherwise the body stays as it is. Blank
lines before an encoded body are skipped, as browsers do. No more is inflated than a record may hold.
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


# Media types by the first bytes, where a server declares none or a wrong one (after the MIME Sniffing Standard).
#
# A declaration of HTML or plain text is believed unless the bytes are an image, an archive, a document format or a
# program; without a declaration the bytes decide alone.

HTML, XML = ("text/html", "application/xhtml+xml"), ("application/xml", "text/xml")
TEXT = ("text/plain",)
#: Declarations that say nothing (MIME Sniffing Standard, 7).
UNKNOWN = ("", "unknown/unknown", "application/unknown", "*/*")
#: So much of a file is looked at; git's bound for its own test of binary files.
HEAD_BYTES = 8000
_SIGNATURES = (
    (rb"%PDF-", "application/pdf"),
    (rb"%!PS-Adobe-", "application/postscript"),
    (rb"GIF8[79]a", "image/gif"),
    (rb"\x89PNG\r\n\x1a\n", "image/png"),
    (rb"\xff\xd8\xff", "image/jpeg"),
    (rb"RIFF[\s\S]{4}WEBPVP", "image/webp"),
    (rb"RIFF[\s\S]{4}(?:WAVE|AVI )", "audio-or-video/riff"),
    (rb"\0\0\x01\0", "image/x-icon"),
    (rb"(?:II\*\0|MM\0\*)", "image/tiff"),
    (rb"\0[\s\S]{3}ftyp", "video/mp4"),
    (rb"\x1aE\xdf\xa3", "video/webm"),
    (rb"OggS\0", "application/ogg"),
    (rb"ID3[\x02-\x04]\0", "audio/mpeg"),
    (rb"(?:wOFF|wOF2|true)\0[\s\S]\0", "font/woff"),
    (rb"(?:\0\x01\0\0|OTTO\0)", "font/sfnt"),
    (rb"\x1f\x8b\x08", "application/gzip"),
    (rb"BZh[1-9]1AY&SY", "application/x-bzip2"),
    (rb"\xfd7zXZ\0", "application/x-xz"),
    (rb"\x28\xb5\x2f\xfd", "application/zstd"),
    (rb"7z\xbc\xaf'\x1c", "application/x-7z-compressed"),
    (rb"PK(?:\x03\x04|\x05\x06)", "application/zip"),
    (rb"Rar!\x1a\x07", "application/x-rar-compressed"),
    (rb"[\s\S]{257}ustar", "application/x-tar"),
    (rb"!<arch>\n", "application/x-archive"),
    (rb"\x7fELF", "application/x-elf"),
    (rb"MZ[\s\S]{0,126}\0\0\0", "application/x-msdownload"),
    (rb"\0asm", "application/wasm"),
    (rb"\xca\xfe\xba\xbe", "application/java-vm"),
    (rb"(?:\xcf\xfa\xed\xfe|\xfe\xed\xfa[\xce\xcf])", "application/x-mach-binary"),
    (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/x-ole-storage"),
    (rb"SQLite format 3\0", "application/vnd.sqlite3"),
)
_SIGNATURE = re.compile(b"|".join(b"(%s)" % pattern for pattern, _ in _SIGNATURES))
#: Bytes that no text has (MIME Sniffing Standard, 3).
_BINARY_BYTES = re.compile(rb"[\0-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")
#: Compressed bytes of this length without a single control byte do not occur (the probability is 1e-10).
_TEXT_BYTES = 200
_TAGS = re.compile(
    rb"\s*<(?:!--|(?:!doctype\s+html|html|head|script|iframe|h1|div|font|table|a|style|title|b|body|br|p)[\s>])", re.I
)
_ROOT = re.compile(rb"<(?:[\w.-]+:)?html[\s>]", re.I)


def signature(head: bytes) -> str:
    """The binary format that begins so; empty for none that is known."""
    found = _SIGNATURE.match(head)
    return _SIGNATURES[found.lastindex - 1][1] if found and found.lastindex else ""


def has_nul(head: bytes) -> bool:
    """Whether a file is binary by git's rule: NUL near its beginning, but for UTF-16 with a byte order mark."""
    return b"\0" in head[:HEAD_BYTES] and not head.startswith(_WIDE_MARKS)


def is_text(body: bytes) -> bool:
    """True if a body is text and not compressed: no control bytes, and UTF-8 or too long to lack them by chance."""
    head = body[:HEAD_BYTES]
    if head.startswith(_WIDE_MARKS):
        return True
    if _BINARY_BYTES.search(head):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return len(head) >= _TEXT_BYTES
    return True


def page_type(declared: str, body: bytes) -> str:
    """The media type of a captured body: one of `HTML` or `TEXT` for what can be read, else what it is instead.

    Args:
        declared: type without parameters, in lower case; empty when there is none.
        body: without transfer and content codings.
    """
    head = body[:HEAD_BYTES]
    if binary := signature(head):
        return binary
    if declared in UNKNOWN:
        return _undeclared(head)
    if declared in XML:
        return "text/html" if _ROOT.search(head.replace(b"\0", b"")) else declared
    return declared


def _undeclared(head: bytes) -> str:
    if head.lstrip().startswith(b"<?xml"):
        return "text/html" if _ROOT.search(head) else XML[0]
    if _TAGS.match(head.removeprefix(b"\xef\xbb\xbf")) or _ROOT.search(head):
        return "text/html"
    if _BINARY_BYTES.search(head) and not head.startswith(_WIDE_MARKS):
        return "application/octet-stream"
    return "text/plain"
