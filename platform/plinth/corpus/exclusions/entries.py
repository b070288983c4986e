"""One exclusion: a rule on where documents come from, or the signatures of texts, with person, time and reason."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from plinth import fingerprint
from plinth.corpus.exclusions import addresses
from plinth.corpus.exclusions.signatures import Alike, TextSignature
from plinth.errors import RequestError
from plinth.records import Frozen

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
