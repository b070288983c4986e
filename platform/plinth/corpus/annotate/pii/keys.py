"""Keys, tokens and passwords: those of a published form, and random strings assigned to the name of a secret.

Forms are those that the issuers publish for secret scanning. A value without a form must be assigned to a name such as
`api_key`, must not be made of words, and must be as disordered as random characters are.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections import Counter

from plinth.corpus.annotate.pii.hits import PiiHit

#: Name, how it begins, the whole form.
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
#: A name, a sign of assignment, perhaps a quotation mark; or an HTTP header.
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
#: A value of a published form with `1234567` in it may be a key all the same.
FORMED_EXAMPLE = re.compile(rb"example|placeholder|your|changeme|dummy|sample|fake|xxxx|redacted", re.I)
WORDS = re.compile(rb"[A-Z]?[a-z]{4,}|[A-Z]{5,}")
HEX = re.compile(rb"[0-9a-f]+\Z|[0-9A-F]+\Z")
#: Bits per character. Random letters and digits have 4.1 at 20 characters; names made of words mostly have less.
MIN_ENTROPY = 3.3


def run(raw: bytes, start: int) -> PiiHit | None:
    """A key that begins with a long run of letters, digits, `_` and `-`."""
    if raw.startswith(b"eyJ", start):
        return _jwt(raw, start)
    for name, first, form in FORMS:
        if raw.startswith(first, start):
            match = form.match(raw, start)
            if match and _formed(name, match[0][len(first) :]):
                return PiiHit(start, match.end(), f"key/{name}")
    return _assigned(raw, start)


def pem(raw: bytes, start: int) -> PiiHit | None:
    """A private key between its lines; the first line alone where the last is missing."""
    match = PEM.match(raw, start, start + 60)
    if match is None:
        return None
    last = PEM_END.search(raw, match.end(), match.end() + MAX_PEM)
    return PiiHit(start, last.end() if last else match.end(), "key/private_key")


def entropy(text: bytes) -> float:
    """Shannon's entropy of the bytes, in bits per byte."""
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
        # without quotation marks it is the name of something, unless it ends its line, as in settings
        if after != name[2] if name[2] else after not in (b"", b"\n", b"\r", b" ", b"&", b";"):
            return None
    return (
        PiiHit(start, start + len(text), "key/assigned")
        if len(text) >= 16 and _random(text) and _unworded(text)
        else None
    )


def _formed(name: str, text: bytes) -> bool:
    """Whether a value of a published form is a key: `sk-` also begins class names and slugs, which are words."""
    if not _disordered(text) or FORMED_EXAMPLE.search(text):
        return False
    return name != "model_api_key" or _unworded(text) or (len(text) >= 32 and bool(HEX.match(text)))


def _random(text: bytes) -> bool:
    """Whether a value looks random and is no example."""
    return _disordered(text) and not EXAMPLE.search(text)


def _disordered(text: bytes) -> bool:
    return entropy(text) >= min(MIN_ENTROPY, 0.75 * math.log2(len(text)))


def _unworded(text: bytes) -> bool:
    """Whether a value has digits, is less than half words, and is not a short digest."""
    if len(text) < 32 and HEX.match(text):
        return False
    words = sum(map(len, WORDS.findall(text)))
    return sum(48 <= byte <= 57 for byte in text) >= 2 and 2 * words < len(text)
