"""E-mail addresses, IP addresses, and passwords inside URLs.

Names reserved for documentation (RFC 2606) and networks that are not public (RFC 6890) belong to no person and are left
out. So are look-alikes: versions, sections and object identifiers are four small numbers, pictures for high-resolution
screens are named `logo@2x.png`, `git@host` is a way to write a URL.
"""

from __future__ import annotations

import ipaddress
import re

from plinth.corpus.annotate.pii.hits import PiiHit

#: Characters of the part before the `@` that people have: the practical part of RFC 5322, at most 64 of them.
LOCAL = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.%+-"
DOMAIN = re.compile(rb"(?:[A-Za-z0-9][A-Za-z0-9-]{0,62}\.){1,8}[A-Za-z]{2,24}(?![\w@-])")
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
    window = raw[max(0, at - 66) : at]
    local = window[len(window.rstrip(LOCAL)) :]
    start = at - len(local)
    domain = DOMAIN.match(raw, at + 1, at + 1 + 600)
    if domain is None:
        return None
    secret = PASSWORD.search(raw, max(0, at - 140), at)
    if secret:
        return None if PLACEHOLDER.match(secret[1]) else PiiHit(secret.start(1), at, "key/url_password")
    wrong = not local or len(local) > 64 or local[0] == 46 or local[-1] == 46 or b".." in local or local == b"git"
    if wrong or raw[start - 1 : start] == b"@" or RESERVED.search(domain[0]) or FILES.search(domain[0]):
        return None
    return PiiHit(start, domain.end(), "email")


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
