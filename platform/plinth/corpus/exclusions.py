"""The exclusion list: documents that were taken down and stay out of every later snapshot.

This module defines the normal forms of URLs, domains and licenses, and reads and writes the signed list. Not here: the
search for artifacts that contain a document, and the report (`plinth corpus takedown`).
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any, Final, Literal
from urllib.parse import quote, unquote_to_bytes

import numpy as np
from pydantic import Field, ValidationError

from plinth import fingerprint, text
from plinth.compute.context import Context
from plinth.corpus.dedup.parameters import MinHash
from plinth.errors import RequestError, SignatureError
from plinth.records import Frozen
from plinth.trust.dsse import COMPLIANCE, now
from plinth.trust.log_record import LogRecord
from plinth.trust.root import Trust
from plinth.trust.signed_log import SignedLog
from plinth_text.arrays import U64

# Normal forms of addresses, domains and licenses, so that a rule means what a person means by it.
#
#     address    no scheme, no `www.`, no default port, no fragment, no last slash; percent escapes decoded where the
#                character needs none, and in capitals where it does; the query stays as it is otherwise
#     domain     a host (`text.hosts`) without `www.`
#     licence    lower-case identifiers of an SPDX expression
#
# A name within a source (no scheme) has the same normal form on both sides of a comparison, and that is all it needs.

#: Characters that an address may hold as they are: RFC 3986, section 2.2 and 2.3, and the escapes themselves.
_PATH_SAFE = "/:@!$&'()*+,;=-._~"
_QUERY_SAFE = _PATH_SAFE + "?"
_PLAIN = re.compile(r"[A-Za-z0-9/:@!$&'()*+,;=\-._~?]*")
_PORTS = {"http": "80", "https": "443"}
_PORT = re.compile(r":(\d*)\Z")
_WORDS = frozenset({"and", "or", "with"})


def address(uri: str) -> str:
    """Return the normal form of a URL, or of a document's name within a source."""
    rest = uri.strip().partition("#")[0]
    scheme, found, after = rest.partition("://")
    scheme, rest = (scheme.lower(), after) if found else ("", rest)
    place, question, query = rest.partition("?")
    name, slash, path = place.partition("/")
    if scheme:
        port = _PORT.search(name)
        number = port[1] if port and port[1] != _PORTS.get(scheme) else ""
        name = (text.host(f"//{name}") or name) + (f":{number}" if number else "")
    else:
        name = text.folded(name)
    whole = f"{name.removeprefix('www.')}{slash}{_escaped(path, _PATH_SAFE)}".rstrip("/")
    return f"{whole}?{_escaped(query, _QUERY_SAFE)}" if question and query else whole


def domain(name: str) -> str:
    """Return the normal form of a host name.

    Raises:
        ValueError: the name is not a host name with a dot in it.
    """
    found = text.domain(name)
    if text.is_ip(found):
        raise ValueError(text.EXPECTED)
    return found


def domains_of(uri: str) -> list[str]:
    """Return the host of a URL and its parent domains that contain a dot, longest first. A name within a source has no
    domains."""
    return text.domains(text.host(uri, bare=True).removeprefix("www."))


@lru_cache(maxsize=65536)
def licences_of(expression: str) -> frozenset[str]:
    """Return the identifiers of an SPDX expression, in lower case."""
    words = re.split(r"[\s()]+", expression.strip().lower())
    return frozenset(word for word in words if word and word not in _WORDS)


def _escaped(text: str, safe: str) -> str:
    """Return the text with unnecessary escapes decoded once and unsafe characters escaped. A `%` that does not start an
    escape is treated as a literal."""
    if _PLAIN.fullmatch(text):
        return text
    pieces = re.split(r"(%[0-9A-Fa-f]{2})", text)
    return "".join(
        _decoded(piece) if at % 2 else quote(piece, safe + "%", errors="replace") for at, piece in enumerate(pieces)
    )


def _decoded(escape: str) -> str:
    character = unquote_to_bytes(escape).decode("latin-1")
    return character if character.isascii() and (character.isalnum() or character in "-._~") else escape.upper()


# A text as digest and shingle hashes, so that it is found again without being kept.
#
# Two texts are alike when of the smaller set of shingles a share of at least `threshold` is in the other. That takes a
# near duplicate (a Jaccard similarity of the threshold implies it), a page that quotes the whole text, and an excerpt.
# A text of few shingles is alike only what equals it but for case and white space.
#
# Readers of signed records import this module, so kernels are imported only where texts are compared.


#: Minimum number of shingles; shorter phrases would match texts that merely quote them.
LEAST_SHINGLES = 20


class Alike(Frozen):
    """Criterion for similar texts. Shingles and threshold are those of the corpus's near deduplication, but whole texts
    are compared."""

    shingle_words: int = Field(5, ge=1)
    shingle_characters: int | None = Field(None, ge=1)
    threshold: float = Field(0.8, gt=0, le=1)

    @property
    def minhash(self) -> MinHash:
        """Parameters for computing the shingles of a text."""
        return MinHash(**self.model_dump(), max_characters=None)


class TextSignature(Frozen):
    """Signature that recognizes a text. `shingles` are sorted hashes of 8 little-endian bytes each, in base64."""

    digest: str = Field(pattern=r"^[0-9a-f]{32}$")
    shingles: str = ""

    @cached_property
    def set(self) -> U64:
        """Hashes of the shingles as an array."""
        return np.frombuffer(base64.b64decode(self.shingles), dtype="<u8").astype(np.uint64, copy=False)


def sign_texts(texts: list[str], alike: Alike) -> tuple[TextSignature, ...]:
    """Return the signatures of texts without repeats, sorted by digest."""
    import pyarrow as pa

    from plinth.corpus.dedup.near import linking
    from plinth_text.unicode import digests

    column = pa.array(texts, pa.large_string())
    found: Mapping[str, U64] = {
        digest.hex(): own
        for digest, own in zip(digests(column).to_pylist(), linking.sets(column, alike.minhash), strict=True)
    }
    return tuple(
        TextSignature(digest=digest, shingles=_coded(own) if own.size >= LEAST_SHINGLES else "")
        for digest, own in sorted(found.items())
    )


def overlap(a: U64, b: U64) -> float:
    """Return the share of the smaller set's hashes that are also in the other set, or 0 if either set has fewer than
    `LEAST_SHINGLES`."""
    from plinth_text.words import shared

    smaller = min(a.size, b.size)
    return shared(a, b) / smaller if smaller >= LEAST_SHINGLES else 0.0


def _coded(hashes: U64) -> str:
    return base64.b64encode(hashes.astype("<u8", copy=False).tobytes()).decode("ascii")


Kind = Literal["url", "domain", "licence", "document", "text"]
KINDS: tuple[Kind, ...] = ("url", "domain", "licence", "document", "text")
DOCUMENT_ID = re.compile(r"[0-9a-f]{32}")
_EXPECTED = {
    "url": "a URL, or a document's name as in its source",
    "domain": "a host name with a dot in it, such as example.org",
    "licence": "one SPDX identifier, such as CC-BY-NC-4.0, or `unknown`",
    "document": "an id of 32 hexadecimal digits",
    "text": "a text with letters in it",
}


class Exclusion(Frozen):
    """Entry of the exclusion list. `prior` is the SHA-256 of the previous entry, as stored in the workspace.

    `value` is the normal form of the request; if a text is excluded, it is the digest of the text's signature.
    `documents` are the ids that the entry excludes, and `texts` are the signatures of the texts that it excludes.
    `found` is the number of documents that the entry excluded when it was created.
    """

    number: int = Field(ge=1)
    prior: str | None
    kind: Kind
    value: str = Field(min_length=1)
    alike: Alike = Alike()
    texts: tuple[TextSignature, ...] = ()
    documents: tuple[str, ...] = ()
    found: int = Field(ge=0)
    by: str = Field(min_length=1)
    reason: str = Field(min_length=1)
    at: str

    @property
    def digest(self) -> str:
        """Return the digest of the exclusion rule. Person, time and reason are not included."""
        names = {"number", "kind", "value", "alike", "texts", "documents"}
        return fingerprint.digest(self.model_dump(mode="json", include=names))


def normal(kind: Kind, value: str) -> str:
    """Return the normal form of the value in an exclusion request.

    Raises:
        RequestError: the value is not valid for a rule of this kind.
    """
    try:
        found = _normal(kind, value)
    except ValueError:
        found = ""
    if not found:
        raise RequestError(f"{kind} {value[:80]!r} is not valid for a takedown", expected=_EXPECTED[kind])
    return found


def _normal(kind: Kind, value: str) -> str:
    if kind == "url":
        return address(value)
    if kind == "domain":
        return domain(value)
    if kind == "licence":
        (only,) = licences_of(value)
        return only
    if kind == "document":
        return value if DOCUMENT_ID.fullmatch(value) else ""
    return value if any(character.isalnum() for character in value) else ""


def numbers(entries: Iterable[Exclusion]) -> str:
    """Return the entries' numbers as text for messages, such as `1, 2, 5`."""
    return ", ".join(str(entry.number) for entry in entries) or "none"


# The exclusion list: a signed log of `compliance` (`plinth.trust.signed_log`), only ever added to.
#
#     exclusions/00001.json    a DSSE envelope whose predicate is the entry
#
# A changed, replaced or missing entry fails every build that reads the list, with an error that names the entry:
# removed text must not return because a file is missing.

EXCLUSIONS: Final = SignedLog(
    "exclusions",
    (COMPLIANCE,),
    kind="urn:plinth:exclusion:v1",
    title="entries of the exclusion list",
    flat=True,
    shared=True,
)


def read(ctx: Context) -> tuple[Exclusion, ...]:
    """Return all entries of the exclusion list, oldest first. The list is empty if there was no takedown.

    Raises:
        SignatureError: an entry was changed, is missing, or was not signed by `compliance`.
    """
    return tuple(_entry(record) for record in EXCLUSIONS.records(ctx))


def append(ctx: Context, **fields: Any) -> Exclusion:
    """Sign and write the next entry of the exclusion list. `number`, `prior`, `by` and `at` are set here.

    Raises:
        SignatureError: an earlier entry cannot be verified, or this machine has no key of `compliance`.
        ConflictError: another process added an entry in the meantime.
    """
    earlier, by = EXCLUSIONS.records(ctx), Trust.of(ctx.workspace).signer(COMPLIANCE).owner
    prior = earlier[-1].sha256 if earlier else None
    entry = Exclusion(number=len(earlier) + 1, prior=prior, by=by, at=now(), **fields)
    body = entry.model_dump(mode="json", exclude={"number", "prior", "at"})
    about = {f"exclusion-{entry.number}": entry.digest}
    return _entry(EXCLUSIONS.append(ctx, body, about, COMPLIANCE, at=entry.at, number=entry.number))


def digest(ctx: Context) -> str | None:
    """Return the digest of the stored exclusion list without verifying the list, or None if there is no list."""
    objects = ctx.workspace.objects(EXCLUSIONS.name)
    files = [hashlib.sha256(found.data).hexdigest() for name in objects.names() if (found := objects.get(name))]
    return fingerprint.digest(files) if files else None


def _entry(record: LogRecord) -> Exclusion:
    where = f"{EXCLUSIONS.name}/{record.number:05d}.json"
    try:
        entry = Exclusion(number=record.number, prior=record.prior, at=record.at, **record.body)
    except (TypeError, ValidationError) as error:
        raise SignatureError(f"{where} cannot be read", found=error) from error
    if entry.digest not in record.subjects.values():
        raise SignatureError(f"{where} is signed for a different rule", found=record.subjects, expected=entry.digest)
    return entry
