"""E-mail addresses, IP addresses, and passwords inside URLs.

Names reserved for documentation (RFC 2606) and networks that are not public (RFC 6890) belong to no person and are left
out. So are look-alikes: versions, sections and object identifiers are four small numbers, pictures for high-resolution
screens are named `logo@2x.png`, `git@host` is a way to write a URL.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata

from plinth.corpus.annotate.pii.hits import PiiHit

#: ASCII of the part before the `@` that people have: the practical part of RFC 5322, at most 64 octets with the letters
#: that RFC 6531 adds.
LOCAL = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.%+-"
MAX_LOCAL = 64
#: The one name with an apostrophe that is no quotation mark or article: `o'hara@…`.
IRISH = re.compile(rb"(?<!\w)[Oo]'\Z")
DOMAIN = re.compile(
    rb"(?:[A-Za-z0-9][A-Za-z0-9-]{0,62}\.){1,8}(?:[A-Za-z]{2,24}|[Xx][Nn]--[A-Za-z0-9-]{2,59})(?![\w@-])"
)
#: Top-level domains in other scripts (IANA's root zone). A list, since Chinese runs on without a space after them.
OTHER_ZONES = (
    "рф рус укр бел срб мкд бг ею қаз мон онлайн сайт дети москва ком орг ελ ευ հայ გე 中国 中國 公司 网络 網路 网址 "
    "在线 中文网 商城 广告 我爱你 香港 台湾 台灣 集团 한국 닷컴 닷넷 みんな コム ไทย คอม भारत বাংলা ভারত السعودية امارات "
    "مصر ایران شبكة موقع ישראל קום"
)
#: The same in any script (RFC 5890): tried where the ASCII one does not match.
OTHER_DOMAIN = re.compile(
    rf"(?:[^\W_](?:[\w-]{{0,61}}[^\W_])?\.){{1,8}}(?:[A-Za-z]{{2,24}}(?![A-Za-z0-9_@\u00c0-\u02ff-])|(?:{'|'.join(OTHER_ZONES.split())}))"
)
#: Scripts that put no space between words: a letter of one before an ASCII name belongs to the sentence.
UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)
#: Characters that a name in such a script may have, alone between spaces or punctuation.
MAX_UNSPACED = 6
RESERVED = re.compile(rb"(?:\A|\.)(?:example(?:\.(?:com|net|org))?|localhost|test|invalid)\Z", re.IGNORECASE)
FILES = re.compile(rb"\.(?:png|jpe?g|gif|svg|webp|ico|css|js|py|html?|json|ya?ml|whl|zip|gz)\Z", re.IGNORECASE)
PASSWORD = re.compile(rb"://[^\s/:@\"'<>]{1,64}:([^\s/:@\"'<>]{3,64})\Z")
#: Passwords that documentation writes.
PLACEHOLDER = re.compile(
    rb"(?:\W*(?:pass(?:word|wd)?|pwd|secret|user|token|pw|x+|\*+|\.+|your\w*|my\w*|change\w*|example\w*)\W*)\Z",
    re.IGNORECASE,
)
DOTTED = re.compile(rb"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)")
HEXES = re.compile(rb"(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:.])")
#: Numbers after one of these are a version or a place in a document.
NUMBERED = re.compile(
    rb"(?:\b(?:versions?|ver|v|release|sections?|sec|chapter|rfc|build)|\xc2\xa7|[<>=~]=)[\s:=.'\"`]{0,5}\Z",
    re.IGNORECASE,
)
#: Four numbers below this are almost never an address: one in four thousand addresses is one.
SMALL = 32
#: All global unicast addresses of version 6 that are assigned (IANA; RFC 4291).
UNICAST6 = ipaddress.ip_network("2000::/3")


def email(raw: bytes, at: int) -> PiiHit | None:
    """The address around the `@` at a byte, or the password of a URL that ends there."""
    domain = DOMAIN.match(raw, at + 1, at + 1 + 600)
    host = domain[0] if domain else _other_domain(raw, at + 1)
    if not host:
        return None
    local = _local(raw, at)
    start, end = at - len(local), at + 1 + len(host)
    secret = PASSWORD.search(raw, max(0, at - 140), at)
    if secret:
        return None if PLACEHOLDER.match(secret[1]) else PiiHit(secret.start(1), at, "key/url_password")
    wrong = (
        not local or len(local) > MAX_LOCAL or local[0] == 46 or local[-1] == 46 or b".." in local or local == b"git"
    )
    if wrong or raw[start - 1 : start] == b"@" or RESERVED.search(host) or FILES.search(host):
        return None
    return PiiHit(start, end, "email")


def _local(raw: bytes, at: int) -> bytes:
    """What stands before an `@` and can be a name: never a part of a word."""
    window = raw[max(0, at - MAX_LOCAL - 4) : at]
    local = window[len(window.rstrip(LOCAL)) :]
    before = window[: len(window) - len(local)]
    if not before or before[-1] < 128:
        irish = IRISH.search(before) if local else None
        return irish[0] + local if irish else local
    text = window.decode("utf-8", "ignore")
    size = next((size for size, char in enumerate(reversed(text)) if not _named(char)), len(text))
    if size:
        return text[len(text) - size :].encode()
    size = next((size for size, char in enumerate(reversed(text)) if not _letter(char)), len(text))
    return text[len(text) - size :].encode() if size <= MAX_UNSPACED else b""


def _named(character: str) -> bool:
    """Whether a character can stand in a name, and not in the sentence that runs on into it."""
    if character.isascii():
        return ord(character) in LOCAL
    return _letter(character) and not UNSPACED.match(character)


def _letter(character: str) -> bool:
    return unicodedata.category(character)[0] in "LM"


def _other_domain(raw: bytes, start: int) -> bytes:
    """A domain with letters outside ASCII."""
    match = OTHER_DOMAIN.match(raw[start : start + 256].decode("utf-8", "ignore"))
    return match[0].encode() if match else b""


def dotted(raw: bytes, start: int) -> PiiHit | None:
    """An IPv4 address; `private_ip` where it is not public."""
    match = DOTTED.match(raw, start)
    if match is None or all(int(number) < SMALL for number in match[0].split(b".")):
        return None
    if NUMBERED.search(raw, max(0, start - 16), start):
        return None
    return _address(match)


def hexes(raw: bytes, start: int) -> PiiHit | None:
    """An IPv6 address."""
    match = HEXES.match(raw, start)
    return _address(match) if match and len(match[0]) > 4 else None


def _address(match: re.Match[bytes]) -> PiiHit | None:
    try:
        found = ipaddress.ip_address(match[0].decode("ascii"))
    except ValueError:
        return None
    public = found.is_global and not found.is_multicast and (found.version == 4 or found in UNICAST6)
    return PiiHit(match.start(), match.end(), "ip" if public else "private_ip")
