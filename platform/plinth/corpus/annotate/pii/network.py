"""E-mail addresses, IP addresses, passwords inside URLs; keys, tokens and passwords."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import math
import re
import unicodedata
from collections import Counter

from plinth.corpus.annotate.pii.numbers import PiiHit

# E-mail addresses, IP addresses, and passwords inside URLs.
#
# Names reserved for documentation (RFC 2606) and networks that are not public (RFC 6890) do not identify a person and
# are skipped. Look-alikes are skipped as well: versions, section numbers and object identifiers of four small numbers,
# image names such as `logo@2x.png`, and URLs such as `git@host`.

#: ASCII characters of the part before the `@`: the practical subset of RFC 5322, at most 64 octets including the
#: letters that RFC 6531 adds.
LOCAL = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.%+-"
MAX_LOCAL = 64
#: The only names in which an apostrophe is neither a quotation mark nor part of an article: `o'hara@…`.
IRISH = re.compile(rb"(?<!\w)[Oo]'\Z")
DOMAIN = re.compile(
    rb"(?:[A-Za-z0-9][A-Za-z0-9-]{0,62}\.){1,8}(?:[A-Za-z]{2,24}|[Xx][Nn]--[A-Za-z0-9-]{2,59})(?![\w@-])"
)
#: Top-level domains in other scripts (IANA's root zone). A list is needed because Chinese text continues without a
#: space.
OTHER_ZONES = (
    "рф рус укр бел срб мкд бг ею қаз мон онлайн сайт дети москва ком орг ελ ευ հայ გე 中国 中國 公司 网络 網路 网址 "
    "在线 中文网 商城 广告 我爱你 香港 台湾 台灣 集团 한국 닷컴 닷넷 みんな コム ไทย คอม भारत বাংলা ভারত السعودية امارات "
    "مصر ایران شبكة موقع ישראל קום"
)
#: Domain in any script (RFC 5890), tried if the ASCII pattern does not match.
OTHER_DOMAIN = re.compile(
    rf"(?:[^\W_](?:[\w-]{{0,61}}[^\W_])?\.){{1,8}}(?:[A-Za-z]{{2,24}}(?![A-Za-z0-9_@\u00c0-\u02ff-])|(?:{'|'.join(OTHER_ZONES.split())}))"
)
#: Scripts without spaces between words. Their letters before an ASCII name belong to the sentence, not the address.
UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)
#: Characters of a name in such a script, between spaces or punctuation.
MAX_UNSPACED = 6
RESERVED = re.compile(rb"(?:\A|\.)(?:example(?:\.(?:com|net|org))?|localhost|test|invalid)\Z", re.IGNORECASE)
FILES = re.compile(rb"\.(?:png|jpe?g|gif|svg|webp|ico|css|js|py|html?|json|ya?ml|whl|zip|gz)\Z", re.IGNORECASE)
PASSWORD = re.compile(rb"://[^\s/:@\"'<>]{1,64}:([^\s/:@\"'<>]{3,64})\Z")
#: Passwords used in documentation.
PLACEHOLDER = re.compile(
    rb"(?:\W*(?:pass(?:word|wd)?|pwd|secret|user|token|pw|x+|\*+|\.+|your\w*|my\w*|change\w*|example\w*)\W*)\Z",
    re.IGNORECASE,
)
DOTTED = re.compile(rb"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)")
HEXES = re.compile(rb"(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:.])")
#: Words that mark the number after them as a version or a section of a document.
NUMBERED = re.compile(
    rb"(?:\b(?:versions?|ver|v|release|sections?|sec|chapter|rfc|build)|\xc2\xa7|[<>=~]=)[\s:=.'\"`]{0,5}\Z",
    re.IGNORECASE,
)
#: Four numbers below this are almost never an address; only one in four thousand addresses has this form.
SMALL = 32
#: All global unicast addresses of version 6 that are assigned (IANA; RFC 4291).
UNICAST6 = ipaddress.ip_network("2000::/3")


def email(raw: bytes, at: int) -> PiiHit | None:
    """Match the e-mail address around the `@` at byte `at`, or the password before this `@` if it belongs to a URL."""
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
    """Return the text before an `@` that can be the local part of an e-mail address. A part of a longer word is never
    returned."""
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
    """Return True if a character can be part of an e-mail name and is not punctuation of the surrounding sentence."""
    if character.isascii():
        return ord(character) in LOCAL
    return _letter(character) and not UNSPACED.match(character)


def _letter(character: str) -> bool:
    return unicodedata.category(character)[0] in "LM"


def _other_domain(raw: bytes, start: int) -> bytes:
    """Match a domain name with letters outside ASCII."""
    match = OTHER_DOMAIN.match(raw[start : start + 256].decode("utf-8", "ignore"))
    return match[0].encode() if match else b""


def dotted(raw: bytes, start: int) -> PiiHit | None:
    """Match an IPv4 address. The kind is `private_ip` if the address is not public."""
    match = DOTTED.match(raw, start)
    if match is None or all(int(number) < SMALL for number in match[0].split(b".")):
        return None
    if NUMBERED.search(raw, max(0, start - 16), start):
        return None
    return _address(match)


def hexes(raw: bytes, start: int) -> PiiHit | None:
    """Match an IPv6 address."""
    match = HEXES.match(raw, start)
    return _address(match) if match and len(match[0]) > 4 else None


def _address(match: re.Match[bytes]) -> PiiHit | None:
    try:
        found = ipaddress.ip_address(match[0].decode("ascii"))
    except ValueError:
        return None
    public = found.is_global and not found.is_multicast and (found.version == 4 or found in UNICAST6)
    return PiiHit(match.start(), match.end(), "ip" if public else "private_ip")


# Keys, tokens and passwords: values in a published format, and random strings assigned to the name of a secret.
#
# Issuers publish the formats for secret scanning. A value without a known format must be assigned to a name such as
# `api_key`, must not consist of words, and must have the entropy of random characters.

#: Name, prefix, and pattern of the whole value.
FORMS = tuple(
    (name, start, re.compile(form + rb"(?![\w-])"))
    for name, start, form in (
        ("aws_access_key", b"A", rb"(?:AKIA|ASIA)[A-Z2-7]{16}"),
        ("github_token", b"gh", rb"gh[pousr]_[A-Za-z0-9]{36,255}"),
        ("github_token", b"github_pat_", rb"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}"),
        ("gitlab_token", b"glpat-", rb"glpat-[\w-]{20,64}"),
        ("slack_token", b"xox", rb"xox[abeoprs]-[A-Za-z0-9-]{10,250}"),
        ("slack_token", b"xapp-", rb"xapp-\d-[A-Za-z0-9-]{10,250}"),
        ("stripe_key", b"sk_live_", rb"sk_live_[A-Za-z0-9]{16,247}"),
        ("stripe_key", b"rk_live_", rb"rk_live_[A-Za-z0-9]{16,247}"),
        ("google_key", b"AIza", rb"AIza[\w-]{35}"),
        ("npm_token", b"npm_", rb"npm_[A-Za-z0-9]{36}"),
        ("pypi_token", b"pypi-AgEIcHlwaS5vcmc", rb"pypi-AgEIcHlwaS5vcmc[\w-]{50,1000}"),
        (
            "model_api_key",
            b"sk-",
            rb"sk-(?:(?:ant|proj|svcacct|admin|or-v1)-[\w-]{16,250}|[A-Za-z0-9]{20,250}|[\w-]{32,250})",
        ),
        ("hugging_face_token", b"hf_", rb"hf_[A-Za-z0-9]{34}"),
        ("digitalocean_token", b"dop_v1_", rb"dop_v1_[0-9a-f]{64}"),
        ("shopify_token", b"shpat_", rb"shpat_[0-9a-fA-F]{32}"),
    )
)
JWT = re.compile(rb"(eyJ[\w-]{8,2000})\.eyJ[\w-]{8,8000}\.[\w-]{10,2000}")
PEM = re.compile(rb"-----BEGIN (?:(?:RSA|DSA|EC|OPENSSH|ENCRYPTED|PGP|ANY) )?PRIVATE KEY(?: BLOCK)?-----")
PEM_END = re.compile(rb"-----END [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----")
MAX_PEM = 20_000
#: A name, an assignment sign, and an optional quotation mark; or an HTTP header.
ASSIGNED = re.compile(
    rb"(?:([A-Za-z_][\w.-]{0,60})[\"'\]]{0,2}[ \t]{0,2}(?:=>|:=|=|:)[ \t]{0,2}([\"']?)|\b([Bb]earer|[Bb]asic) )\Z"
)
SECRET_NAME = re.compile(
    rb"secret|token|passw(?:or)?d|passwd|passphrase|\bpwd|api[_-]?key|apikey|access[_-]?key|private[_-]?key|auth[_-]?key|"
    rb"credential|signing[_-]?key|encryption[_-]?key|account[_-]?key",
    re.IGNORECASE,
)
#: Names of things that are not secret themselves.
OPEN_NAME = re.compile(
    rb"public|_id\Z|_url\Z|_name\Z|_type\Z|expir|count|max_|num_|length|hash\Z|path\Z|file\Z", re.IGNORECASE
)
VALUE = re.compile(rb"[A-Za-z0-9_+/.=~-]{16,200}")
EXAMPLE = re.compile(
    rb"example|placeholder|your|changeme|dummy|sample|fake|xxxx|0000|1234567|abcdef|foobar|redacted|\.\.\.", re.I
)
#: A value in a published format may be a key even if it contains `1234567`.
FORMED_EXAMPLE = re.compile(rb"example|placeholder|your|changeme|dummy|sample|fake|xxxx|redacted", re.I)
WORDS = re.compile(rb"[A-Z]?[a-z]{4,}|[A-Z]{5,}")
HEX = re.compile(rb"[0-9a-f]+\Z|[0-9A-F]+\Z")
#: Minimum entropy in bits per character. Random letters and digits have 4.1 at 20 characters; most names that consist
#: of words have less.
MIN_ENTROPY = 3.3


def run(raw: bytes, start: int) -> PiiHit | None:
    """Match a key that begins with a long run of letters, digits, `_` and `-`."""
    if raw.startswith(b"eyJ", start):
        return _jwt(raw, start)
    for name, first, form in FORMS:
        if raw.startswith(first, start):
            match = form.match(raw, start)
            if match and _formed(name, match[0][len(first) :]):
                return PiiHit(start, match.end(), f"key/{name}")
    return _assigned(raw, start)


def pem(raw: bytes, start: int) -> PiiHit | None:
    """Match a private key between its BEGIN and END lines, or only the BEGIN line if the END line is missing."""
    match = PEM.match(raw, start, start + 60)
    if match is None:
        return None
    last = PEM_END.search(raw, match.end(), match.end() + MAX_PEM)
    return PiiHit(start, last.end() if last else match.end(), "key/private_key")


def entropy(text: bytes) -> float:
    """Return the Shannon entropy of the bytes, in bits per byte."""
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())


def _jwt(raw: bytes, start: int) -> PiiHit | None:
    match = JWT.match(raw, start)
    if match is None:
        return None
    try:
        header = json.loads(base64.urlsafe_b64decode(match[1] + b"=" * (-len(match[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    return PiiHit(start, match.end(), "key/jwt") if isinstance(header, dict) and "alg" in header else None


def _assigned(raw: bytes, start: int) -> PiiHit | None:
    name = ASSIGNED.search(raw, max(0, start - 80), start)
    value = VALUE.match(raw, start)
    if name is None or value is None:
        return None
    text = value[0].rstrip(b".")
    if name[1] is not None:
        if not SECRET_NAME.search(name[1]) or OPEN_NAME.search(name[1]):
            return None
        after = raw[value.end() : value.end() + 1]
        # a value without quotation marks is an identifier, unless it ends its line, as in settings files
        if after != name[2] if name[2] else after not in (b"", b"\n", b"\r", b" ", b"&", b";"):
            return None
    return (
        PiiHit(start, start + len(text), "key/assigned")
        if len(text) >= 16 and _random(text) and _unworded(text)
        else None
    )


def _formed(name: str, text: bytes) -> bool:
    """Return True if a value in a published key format is really a key. The prefix `sk-` also begins class names and
    slugs, which consist of words."""
    if not _disordered(text) or FORMED_EXAMPLE.search(text):
        return False
    return name != "model_api_key" or _unworded(text) or (len(text) >= 32 and bool(HEX.match(text)))


def _random(text: bytes) -> bool:
    """Return True if a value looks random and has no pattern of an example, such as `placeholder` or `1234567`."""
    return _disordered(text) and not EXAMPLE.search(text)


def _disordered(text: bytes) -> bool:
    return entropy(text) >= min(MIN_ENTROPY, 0.75 * math.log2(len(text)))


def _unworded(text: bytes) -> bool:
    """Return True if a value has at least two digits, consists of words in less than half of its length, and is not a
    short hex digest."""
    if len(text) < 32 and HEX.match(text):
        return False
    words = sum(map(len, WORDS.findall(text)))
    return sum(48 <= byte <= 57 for byte in text) >= 2 and 2 * words < len(text)
