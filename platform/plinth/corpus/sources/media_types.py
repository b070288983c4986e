"""Media types by the first bytes, where a server declares none or a wrong one (after the MIME Sniffing Standard).

A declaration of HTML or plain text is believed unless the bytes are an image, an archive, a document format or a
program; without a declaration the bytes decide alone.
"""

from __future__ import annotations

import codecs
import re

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
