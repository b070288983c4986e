"""Conversion of bytes to text: decoding of HTTP transfer and content codings, and character sets from headers, pages
and detection.
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

# Bytes as text, in the character set that a browser would find (WHATWG Encoding Standard; HTML, 13.2.3.2).
#
#     mark        a byte order mark decides
#     UTF-8       bytes that are UTF-8 are hardly ever anything else, whatever is declared
#     header      the character set that the server declares
#     meta        the one that a page declares in its first bytes
#     detection   by the frequencies of the bytes, where nothing is declared, or where the bytes refute what is
#
# A declaration is refuted where more than `MAX_BAD` of the bytes beyond ASCII are none of its characters; bytes that
# are none are dropped. Labels follow the standard: Shift_JIS is Windows-31J, EUC-KR is Windows-949, Big5 has
# the characters of Hong Kong and ETEN, GB2312 and GBK are GB18030, ISO-8859-1 is Windows-1252.

MARKS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
#: Maximum share of invalid bytes beyond ASCII, for damaged pages or pages with two character sets.
MAX_BAD = 0.1
#: A page declares its character set within the first 1,024 bytes; templates with long comments need more.
META_BYTES = 4096
#: Labels of which browsers read nothing, since bytes of ASCII mean something else in them, and those bytes.
REPLACEMENT = frozenset({"replacement", "iso-2022-kr", "csiso2022kr", "iso-2022-cn", "iso-2022-cn-ext", "hz-gb-2312"})
_SHIFTED = re.compile(rb"[\x0e\x1b]|~\{")
USER_DEFINED, WESTERN = "x-user-defined", "cp1252"
_LABELS = {"x-mac-cyrillic": "mac-cyrillic", "x-mac-ukrainian": "mac-cyrillic", USER_DEFINED: USER_DEFINED}
#: Python's codecs of the same name are of older or smaller sets.
_CODECS = {"shift_jis": "cp932", "euc_kr": "cp949", "big5": "big5hkscs", "gbk": "gb18030", "iso8859-11": "cp874"}
#: Where statistics find nothing: a set whose every byte fits, and the script that its text is then mostly in.
_SCRIPTS = (("cp949", re.compile("[\uac00-\ud7a3]")), ("cp932", re.compile("[\u3041-\u30ff]")))
MIN_SCRIPT = 0.3
#: Many servers declare Latin-1 for everything; no western text has such runs.
_FOREIGN = re.compile(b"[\x80-\xff]{8}")
#: Bytes that no text has, where the character set has to be guessed.
_BINARY = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")
_ASCII = bytes(range(128))
_META = re.compile(rb"<meta[\s/]((?:[^>\"']|\"[^\"]*\"|'[^']*')*)", re.I)
_COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.S)
_ATTRIBUTE = re.compile(rb"""([^\s=>"'/]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>"']+))""")
_CHARSET = re.compile(rb"""charset\s*=\s*["']?\s*([^\s"';,]+)""", re.I)
_XML = re.compile(rb"""\s*<\?xml\s[^>]*?encoding\s*=\s*["']([^"']+)""")
_ESCAPE = re.compile(rb"\x1b(\$[@B]|\([BIJ])")
#: Characters of the standard's Big5 that Python's lacks, by the first code of each run.
_BIG5 = (
    "877A㡵𡵓𣚞𦀡㻬 87A1𥣞㫵竼龗𤅡𨤍𣇪𠪊𣉞䌊蒄龖鐯䤰蘓墖靊鈘秐稲晠権袝瑌篅枂稬剏遆㓦珄𥶹瓆鿇 "
    "87C3垳䤯呌䄱𣚎堘穲𧭥讏䚮𦺈䆁𥶙箮𢒼鿈𢓁𢓉𢓌鿉蔄𣖻䂴鿊䓡𪷿拁灮鿋 8E69箸 8E6F簆 8E7E糎 8EAB緒 8EB4縝 8ECD者 "
    "8ED0耨 8F57菁 8F69蒨 8F6E萏 8FCB覦覩 8FFE起 906D都 907A銹 90DC靜 90F1響 91BF鼖 9244蔃 92AF兙兛兝兞 92C8鍮 "
    "92D1瑹 9447浧 94CA禛 95D9邗 9644靝 96ED瀞 96FC嬨 9B76爁 9B78矗 9B7B纇 9BC6駖 9BDE釔 9BEC惞 9BF6澶 9C42輶 "
    "9C53侻 9C62營 9C68鄄 9C6B鷰 9C77菏 9CBC尐秣 9CD0婧 9D57輋 9D5A筑 9DC4拐 9EA9恢 9EEF痹 9EFD汊 9F60鬮 9F66鼗 "
    "9FCB僭 9FD8弌 A063蠏 A077拎 A0D5瑨 A0DF煢 A0E4牐 "
    "A3C0␀␁␂␃␄␅␆␇␈␉␊␋␌␍␎␏␐␑␒␓␔␕␖␗␘␙␚␛␜␝␞␟␡€ C6CF廴 C6D3无 C6D5癶 C6D7隶 "
    "C6DE〃仝 FA5F倩 FA66偽 FABD包 FAC5卄 FAD5卿 FB48嘅 FBB8婷 FBF3幵 FBF9廐 FC4F彘 FC6C悤 FCB9撐 FCE2晴 FCF1杞 "
    "FDB7沜渝 FDBB港 FDF1煮 FE52猪 FE6F瑜 FEAA瓩 FEDD砉"
)
_BIG5_EXTRA = {int(run[:4], 16) + at: c for run in _BIG5.split(" ") for at, c in enumerate(run[4:])}
#: Characters that had no place in Unicode when Python's codec was written, or one that only Macintoshes share.
_AS_BROWSERS = {
    "gb18030": str.maketrans(
        "\ue5e5\ue78d\ue78e\ue78f\ue790\ue791\ue792\ue793\ue794\ue795\ue796\ue7c7\ue81e\ue826\ue82b\ue82c\ue832\ue843\ue854\ue864",
        "\u3000︐︒︑︓︔︕︖︗︘︙ḿ龴龵龶龷龸龹龺龻",
    ),
    "big5hkscs": str.maketrans("•､‾∼♁☉¥¢£", "‧﹑¯～⊕⊙￥￠￡"),
    "euc_jp": str.maketrans("〜‖−¢£¬", "～∥－￠￡￢"),
    "koi8-u": str.maketrans("╝╬", "ўЎ"),
}


def decode(body: bytes, declared: str = "", html: bool = False, partial: bool = False) -> str:
    """Decode bytes to text as browsers do. The text is empty if browsers would show no text.

    Args:
        declared: character set declared by the headers, if any.
        html: True for a page, which may declare a character set itself.
        partial: True if the body is truncated, possibly inside a character.

    Raises:
        UnicodeDecodeError: the body is not a page, its character set is not declared, and the bytes are not text.
    """
    mark = next((mark for mark in MARKS if body.startswith(mark)), None)
    if mark:
        return body[len(mark) :].decode(MARKS[mark], "ignore")
    if declared.strip().lower() in REPLACEMENT and _SHIFTED.search(body):
        return ""
    # Encodings whose bytes are ASCII have the escapes of ISO-2022, or the NULs of UTF-16 without a mark.
    failure = None
    if b"\0" not in body and (b"\x1b" not in body or not _ESCAPE.search(body)):
        try:
            return codecs.getincrementaldecoder("utf-8")().decode(body, final=not partial)
        except UnicodeDecodeError as error:
            failure = error
    for codec in _candidates(body, declared, html):
        if codec == "replacement":
            return ""
        text, bad = _decoded(body, codec)
        if bad <= partial + MAX_BAD * len(body.translate(None, _ASCII)):
            return text
    if failure and not html and _BINARY.search(body):
        raise failure
    return _decoded(body, _detected(body))[0]


def _candidates(body: bytes, declared: str, html: bool) -> Iterator[str]:
    """Yield the codecs that headers and page declare, most reliable first."""
    if html and (wide := _utf16(body)):
        yield wide
    labels = [declared, *([_in_page(body[:META_BYTES])] if html else ())]
    for label in labels:
        codec = _codec(label)
        if label != declared:  # a page that can be read so far is in no encoding of two bytes (HTML, 13.2.3.2)
            codec = {USER_DEFINED: WESTERN, "utf-16-le": "utf-8", "utf-16-be": "utf-8"}.get(codec or "", codec)
        elif html and codec in ("utf-16-le", "utf-16-be") and b"\0" not in body:
            continue
        if codec is None or (codec == WESTERN and _FOREIGN.search(body)):
            continue
        yield codec


def _codec(label: str) -> str | None:
    """Return the Python codec for an encoding label, or None if the Encoding Standard does not have the label."""
    from resiliparse.parse.encoding import map_encoding_to_html5

    label = label.strip().lower()
    if label in REPLACEMENT:
        return "replacement"
    found = _LABELS.get(label) or (map_encoding_to_html5(label, fallback_utf8=False) if label else None)
    return _CODECS.get(found, found) if found else None


def _in_page(head: bytes) -> str:
    """Return the encoding label that a page declares, or an empty text if it declares none."""
    if xml := _XML.match(head):
        return xml[1].decode("latin-1")
    for meta in _META.finditer(_COMMENT.sub(b"", head)):
        attributes = {name.lower(): b"".join(values) for name, *values in reversed(_ATTRIBUTE.findall(meta[1]))}
        named = _CHARSET.search(attributes.get(b"content", b""))
        if b"charset" in attributes:
            return attributes[b"charset"].decode("latin-1")
        if named and attributes.get(b"http-equiv", b"").strip().lower() == b"content-type":
            return named[1].decode("latin-1")
    return ""


def _detected(body: bytes) -> str:
    """Detect the character encoding from the bytes, and return its codec."""
    from resiliparse.parse.encoding import detect_encoding

    found = _codec(detect_encoding(body, from_html_meta=False) or "")
    beyond = len(body.translate(None, _ASCII))
    if found not in (None, "utf-8", "replacement") and _decoded(body, found)[1] <= MAX_BAD * beyond:
        return found
    for codec, script in _SCRIPTS:
        text, bad = _decoded(body, codec)
        letters = len(text.encode("ascii", "ignore"))
        if not bad and len(script.findall(text)) > MIN_SCRIPT * (len(text) - letters):
            return codec
    return "utf-8" if found == "utf-8" and _decoded(body, found)[1] <= MAX_BAD * beyond else WESTERN


def _decoded(body: bytes, codec: str) -> tuple[str, int]:
    """Decode bytes, leaving out bytes that the codec cannot decode. Return the text and the number of undecodable
    bytes."""
    if codec == USER_DEFINED:
        return body.decode("latin-1").translate({0x80 + at: 0xF780 + at for at in range(128)}), 0
    if codec == "iso2022_jp":
        body, codec = _as_euc(body), "euc_jp"
    text = body.decode(codec, _HANDLERS.get(codec, "replace"))
    bad = text.count("\ufffd")
    if codec in _AS_BROWSERS:
        text = text.translate(_AS_BROWSERS[codec])
    return text.replace("\ufffd", ""), bad


def _utf16(body: bytes) -> str | None:
    """Return the codec of UTF-16 markup that has no byte order mark, or None. The codec is detected by the first
    character, which is `<` or white space."""
    head = body[:2]
    if len(body) % 2 == 0 and b"\0" in head and head.strip(b"\0 \t\r\n<") == b"":
        return "utf-16-be" if head[:1] == b"\0" else "utf-16-le"
    return None


def _as_euc(body: bytes) -> bytes:
    """Convert ISO-2022-JP to EUC-JP, which has the same characters."""
    pieces = _ESCAPE.split(body)
    out = [pieces[0]]
    for escape, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        high = bytes(byte | 0x80 if 0x20 < byte < 0x7F else byte for byte in piece)
        kana = b"".join(b"\x8e%c" % byte if byte > 0x80 else b"%c" % byte for byte in high)
        out.append(high if escape.startswith(b"$") else kana if escape == b"(I" else piece)
    return b"".join(out)


def _extended(error: UnicodeError) -> tuple[str, int]:
    """Handle the decoding errors of codecs that the Encoding Standard extends. Return the additional character, or a
    replacement character."""
    assert isinstance(error, UnicodeDecodeError)
    pair, found = error.object[error.start : error.start + 2], None
    if pair[:1] == b"\x80" and error.encoding == "gb18030":
        return "€", error.start + 1
    if len(pair) == 2 and error.encoding == "big5hkscs":
        found = _BIG5_EXTRA.get(int.from_bytes(pair))
    elif len(pair) == 2 and error.encoding == "euc_jp" and min(pair) > 0xA0:  # rows that only Windows has
        row, cell = pair[0] - 0xA1, pair[1] - 0xA1
        low = cell + (row % 2) * 94
        shifted = bytes((row // 2 + (0x81 if row < 62 else 0xC1), low + (0x40 if low < 63 else 0x41)))
        found = shifted.decode("cp932", "ignore") or None
    return (found, error.start + 2) if found else ("\ufffd", error.start + 1)


codecs.register_error("plinth-charsets", _extended)
_HANDLERS = dict.fromkeys(("gb18030", "big5hkscs", "euc_jp"), "plinth-charsets")


# HTTP bodies as archives keep them: transfer and content codings undone, character sets as headers name them.
#
# Archivers keep the headers of codings that they have already undone, and servers declare wrong ones. So a coding is
# undone only where the body decodes to its end, or clearly is in that coding; otherwise the body stays as it is. Blank
# lines before an encoded body are skipped, as browsers do. No more is inflated than a record may hold.

#: A page in more nested codings than this is hostile.
MAX_CODINGS = 4
MAGIC = {"gzip": b"\x1f\x8b", "x-gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
#: Size of a chunk, in hexadecimal, with extensions (RFC 9112, 7.1); many recipients take a bare line feed (2.2).
CHUNK_SIZE = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r?\n")
CHARSET = re.compile(r"""charset\s*=\s*["']?\s*([^\s"';,]+)""", re.I)
_MARKUP = re.compile(rb"(?:\xef\xbb\xbf)?\s*<[!?a-zA-Z]")
_LINE_END = re.compile(rb"\r?\n")
#: End of a chunked body after the empty chunk (RFC 9112, 7.1.2): trailer fields and a blank line.
_TRAILERS = re.compile(rb"(?:(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n]*\r?\n)+\r?\n)?\s*")
_BLANK = b" \t\r\n"


def decoded(headers: Any, body: bytes, max_bytes: int, partial_body: bool = False) -> bytes | str:
    """Return an HTTP body without chunking and compression, or the reason to reject it. At most `max_bytes` are
    decompressed.

    Args:
        partial_body: True if the archiver truncated the body (`WARC-Truncated`); its readable part is returned.
    """
    for coding in _codings(headers):
        found = _without(coding, body, max_bytes, partial_body)
        if isinstance(found, str):
            return found
        body = found
    return body


def charset(content_type: str) -> str:
    """Return the character set that a `Content-Type` names, in lower case. Return an empty text if it names none."""
    named = CHARSET.search(content_type)
    return named[1].lower() if named else ""


def _codings(headers: Any) -> list[str]:
    """Return the codings to decode, last applied first: transfer codings, then content codings (RFC 9110, 8.4)."""
    given = [(name.lower(), value.lower()) for name, value in headers.items()]
    listed = [value for wanted in ("content-encoding", "transfer-encoding") for name, value in given if name == wanted]
    named = [step.strip() for step in ",".join(listed).split(",") if step.strip() not in ("", "identity")]
    return named[::-1][:MAX_CODINGS]


def _without(coding: str, body: bytes, max_bytes: int, partial_body: bool) -> bytes | str:
    """Return a body with one coding decoded. A body that is not in that coding is returned unchanged. For a damaged
    body, return the reason to reject it."""
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
    """Return the data of a chunked body. A body that is not chunked is returned unchanged. For a body with broken
    chunks, return the reason to reject it.

    Broken framing is damage only if the body is certainly chunked: a page or a compressed stream begins in the first
    chunk, or complete chunks precede the truncated one. Text whose first line merely looks like a chunk size stays
    text.
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
    """Return a decompressed body, or the reason to reject it."""
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
    """Yield a decompressed body piece by piece. If the body is damaged, yield the reason to reject it."""
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
    """Yield a decompressed `deflate` body piece by piece. The body is in zlib's format (RFC 9110, 8.4.1.2), or is the
    raw stream that some servers send."""
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
#: Bytes read of a file; the same limit as git's test of binary files.
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
    """Return the name of the binary format whose signature the bytes begin with, or an empty text if it is unknown."""
    found = _SIGNATURE.match(head)
    return _SIGNATURES[found.lastindex - 1][1] if found and found.lastindex else ""


def has_nul(head: bytes) -> bool:
    """Return True if a file is binary by git's rule: NUL is near its beginning, and the file is not UTF-16 with a byte
    order mark."""
    return b"\0" in head[:HEAD_BYTES] and not head.startswith(_WIDE_MARKS)


def is_text(body: bytes) -> bool:
    """Return True if a body is uncompressed text. Text has no control bytes. Text that is not valid UTF-8 must be so
    long that compressed data of that length would contain control bytes."""
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
    """Return the media type of a captured body. The type is in `HTML` or `TEXT` if the body can be read as text.

    Args:
        declared: declared type without parameters, in lower case; empty if there is none.
        body: body with transfer and content codings decoded.
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
