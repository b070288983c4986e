"""The exclusion list: a signed log of `compliance` (`plinth.trust.signed_log`), only ever added to. An exclusion is a
rule on where documents come from, or the signatures of texts, which are found again without being kept.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
from pydantic import Field, ValidationError

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus.dedup.parameters import MinHash
from plinth.corpus.exclusions import addresses
from plinth.errors import RequestError, SignatureError
from plinth.records import Frozen
from plinth.trust.authority import COMPLIANCE, now
from plinth.trust.log_record import LogRecord
from plinth.trust.root import Trust
from plinth.trust.signed_log import SignedLog
from plinth_text.arrays import U64

# A text as digest and shingle hashes, so that it is found again without being kept.
#
# Two texts are alike when of the smaller set of shingles a share of at least `threshold` is in the other. That takes a
# near duplicate (a Jaccard similarity of the threshold implies it), a page that quotes the whole text, and an excerpt.
# A text of few shingles is alike only what equals it but for case and white space.
#
# Whoever reads signed records imports this; kernels are imported where texts are compared.


#: Fewer shingles are a phrase, and would take what merely uses it.
LEAST_SHINGLES = 20


class Alike(Frozen):
    """When texts are alike: the corpus' shingles, without its bound on their number, and its threshold."""

    shingle_words: int = Field(5, ge=1)
    shingle_characters: int | None = Field(None, ge=1)
    threshold: float = Field(0.8, gt=0, le=1)

    @property
    def minhash(self) -> MinHash:
        """Parameters of `shingles.sets`."""
        return MinHash(**self.model_dump(), max_characters=None)


class TextSignature(Frozen):
    """A text that can be recognised. `shingles` are sorted hashes, 8 bytes each, little-endian, in base64."""

    digest: str = Field(pattern=r"^[0-9a-f]{32}$")
    shingles: str = ""

    @cached_property
    def set(self) -> U64:
        """The hashes."""
        return np.frombuffer(base64.b64decode(self.shingles), dtype="<u8").astype(np.uint64, copy=False)


def sign_texts(texts: list[str], alike: Alike) -> tuple[TextSignature, ...]:
    """The signatures of texts; equal ones once, in order of their digests."""
    import pyarrow as pa

    from plinth.corpus.dedup.near import shingles
    from plinth_text.unicode import digests

    column = pa.array(texts, pa.large_string())
    found: Mapping[str, U64] = {
        digest.hex(): own
        for digest, own in zip(digests(column).to_pylist(), shingles.sets(column, alike.minhash), strict=True)
    }
    return tuple(
        TextSignature(digest=digest, shingles=_coded(own) if own.size >= LEAST_SHINGLES else "")
        for digest, own in sorted(found.items())
    )


def overlap(a: U64, b: U64) -> float:
    """Share of the smaller set that is in the other; 0 where either has fewer than `LEAST_SHINGLES`."""
    from plinth_text.words.hashes import shared

    smaller = min(a.size, b.size)
    return shared(a, b) / smaller if smaller >= LEAST_SHINGLES else 0.0


def _coded(hashes: U64) -> str:
    return base64.b64encode(hashes.astype("<u8", copy=False).tobytes()).decode("ascii")


Kind = Literal["url", "domain", "licence", "document", "text"]
KINDS: tuple[Kind, ...] = ("url", "domain", "licence", "document", "text")
DOCUMENT_ID = re.compile(r"[0-9a-f]{32}")
_EXPECTED = {
    "url": "an address, or a name as its source gives it",
    "domain": "a host name with a dot in it, such as example.org",
    "licence": "one SPDX identifier, such as CC-BY-NC-4.0, or `unknown`",
    "document": "an id of 32 hexadecimal digits",
    "text": "a text with letters in it",
}


class Exclusion(Frozen):
    """An entry of the list. `prior` is the SHA-256 of the entry before it as it lies in the workspace.

    `value` is the normal form of what was asked for; of a text, the digest of its signature. `documents` are ids that
    the entry takes, `texts` what it recognises, `found` how many documents it took when it was made.
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
        """Identity of what the entry takes; person, time and reason are not in it."""
        names = {"number", "kind", "value", "alike", "texts", "documents"}
        return fingerprint.digest(self.model_dump(mode="json", include=names))


def normal(kind: Kind, value: str) -> str:
    """The normal form of what is asked for.

    Raises:
        RequestError: nothing that a rule of this kind could mean.
    """
    try:
        found = _normal(kind, value)
    except ValueError:
        found = ""
    if not found:
        raise RequestError(f"{kind} {value[:80]!r} is nothing to take down", expected=_EXPECTED[kind])
    return found


def _normal(kind: Kind, value: str) -> str:
    if kind == "url":
        return addresses.address(value)
    if kind == "domain":
        return addresses.domain(value)
    if kind == "licence":
        (only,) = addresses.licences_of(value)
        return only
    if kind == "document":
        return value if DOCUMENT_ID.fullmatch(value) else ""
    return value if any(character.isalnum() for character in value) else ""


def numbers(entries: Iterable[Exclusion]) -> str:
    """`1, 2, 5`, for messages."""
    return ", ".join(str(entry.number) for entry in entries) or "none"


# The exclusion list: a signed log of `compliance` (`plinth.trust.signed_log`), only ever added to.
#
#     exclusions/00001.json    a DSSE envelope whose predicate is the entry
#
# An entry that was edited, replaced or taken out is refused by name, and with it every build that would have read the
# list: text that somebody had removed must not come back because a file is gone.

EXCLUSIONS: Final = SignedLog(
    "exclusions",
    (COMPLIANCE,),
    kind="urn:plinth:exclusion:v1",
    title="entries of the exclusion list",
    flat=True,
    shared=True,
)


def read(ctx: Context) -> tuple[Exclusion, ...]:
    """All entries, oldest first; none where nothing was ever taken down.

    Raises:
        SignatureError: an entry was changed, is missing, or was not signed by `compliance`.
    """
    return tuple(_entry(record) for record in EXCLUSIONS.records(ctx))


def append(ctx: Context, **fields: Any) -> Exclusion:
    """Sign and write the next entry. `number`, `prior`, `by` and `at` are set here.

    Raises:
        SignatureError: an earlier entry does not verify, or there is no key of `compliance` on this machine.
        ConflictError: another process added an entry meanwhile.
    """
    earlier, by = EXCLUSIONS.records(ctx), Trust.of(ctx.workspace).signer(COMPLIANCE).owner
    prior = earlier[-1].sha256 if earlier else None
    entry = Exclusion(number=len(earlier) + 1, prior=prior, by=by, at=now(), **fields)
    body = entry.model_dump(mode="json", exclude={"number", "prior", "at"})
    about = {f"exclusion-{entry.number}": entry.digest}
    return _entry(EXCLUSIONS.append(ctx, body, about, COMPLIANCE, at=entry.at, number=entry.number))


def digest(ctx: Context) -> str | None:
    """Identity of the list as it lies there, unverified; None where there is none."""
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
        raise SignatureError(f"{where} is about another rule", found=record.subjects, expected=entry.digest)
    return entry
