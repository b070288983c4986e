"""Bytes of a page as text: by byte order mark, as UTF-8, by the declared character set, or by detection."""

from __future__ import annotations

import re

#: The encoding that Latin-1 means in HTML, and bytes that are no western word.
WESTERN, _FOREIGN = "cp1252", re.compile(b"[\x80-\xff]{8}")
UTF8_MARK, UTF16_MARKS = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")


def decode(body: bytes, declared: str) -> str:
    """HTML bytes as text: by byte order mark, as UTF-8 where it is that, else by the server's charset, the
    page's own, or detection.

    Bytes that are valid UTF-8 beyond ASCII are hardly ever anything else, whatever the server declares. Bytes that
    the character set does not know are dropped.
    """
    # Encodings whose bytes are ASCII have the escapes of ISO-2022, or the NULs of UTF-16 without a mark.
    if b"\0" not in body and b"\x1b" not in body:
        try:
            return (body[len(UTF8_MARK) :] if body.startswith(UTF8_MARK) else body).decode()
        except UnicodeDecodeError:
            pass  # decided below
    return _decided(body, declared)


def _decided(body: bytes, declared: str) -> str:
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding, map_encoding_to_html5

    if body.startswith(UTF16_MARKS):
        return str(bytes_to_str(body, "utf-16"))
    charset = _utf16(body) or (map_encoding_to_html5(declared, fallback_utf8=False) if declared else None)
    charset = charset or detect_encoding(body, from_html_meta=True) or "utf-8"
    if charset == WESTERN and _FOREIGN.search(body):
        # Many servers and templates declare Latin-1 for everything; no western text has such runs.
        charset = detect_encoding(body, from_html_meta=False) or charset
    return str(bytes_to_str(body, charset))


def _utf16(body: bytes) -> str | None:
    """UTF-16 without a byte order mark, by its first character, which is `<` or white space in markup."""
    head = body[:2]
    if len(body) % 2 == 0 and b"\0" in head and head.strip(b"\0 \t\r\n<") == b"":
        return "utf-16be" if head[:1] == b"\0" else "utf-16le"
    return None
