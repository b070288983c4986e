"""Spans of personal data: e-mail addresses, public IP addresses, payment card numbers.

Patterns only propose; rules decide: an address must be somebody's, a card number must have the length and the
first digits of an issuer and pass Luhn's check. What looks alike is known: versions, sections and object
identifiers are four small numbers, pictures for fine screens are named `logo@2x.png`.

Every repeat is bounded and no two of them compete for the same characters, so no text makes a pattern slow, and
only texts that a kernel finds promising are searched.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from plinth.corpus.annotate.base import Annotator
from plinth.records import EDIT_TYPE, Frozen
from plinth.text import hints

Kind = Literal["email", "ip", "card"]
KINDS: tuple[Kind, ...] = ("email", "ip", "card")
SCHEMA = pa.schema(
    [pa.field(kind, pa.int32(), nullable=False) for kind in KINDS] + [pa.field("spans", EDIT_TYPE, nullable=False)]
)
_HINTS = {"email": hints.EMAIL, "ip": hints.IPV4 | hints.IPV6, "card": hints.NUMBER}

#: The part of RFC 5322's addresses that people have; names of at most 64 characters, labels of at most 63.
EMAIL = re.compile(
    r"(?<![\w.%+@-])[\w%+-][\w.%+-]{0,63}@(?:[A-Za-z0-9][A-Za-z0-9-]{0,62}\.){1,8}[A-Za-z]{2,24}(?![\w@-])", re.ASCII
)
IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)", re.ASCII)
IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:.])", re.ASCII)
CARD = re.compile(
    r"(?<![\w.-])(?:\d{13,19}|\d{4}([ -])\d{4}\1\d{4}\1\d{4}|\d{4}([ -])\d{6}\2\d{4,5})(?![\w-]|\.\d)", re.ASCII
)
#: Names kept for documentation and tests by RFC 2606; an address there is nobody's.
RESERVED = re.compile(r"[@.](?:example(?:\.(?:com|net|org))?|localhost|test|invalid)\Z", re.IGNORECASE)
#: `git@host` is a way to write a URL; the endings are those of files.
NOBODY = re.compile(
    r"git@|.{0,200}\.(?:png|jpe?g|gif|svg|webp|ico|css|js|py|html?|json|ya?ml|whl|zip|gz)\Z", re.IGNORECASE
)
#: Numbers after one of these are a version or a place in a document.
NUMBERED = re.compile(
    r"(?:\b(?:versions?|ver|v|release|sections?|sec|chapter|rfc)|§|[<>=~]=)[\s:=.'\"`]{0,3}\Z", re.IGNORECASE
)
#: Four numbers below this are next to never an address: one in four thousand of all addresses is such.
SMALL = 32
#: All global unicast addresses of version 6 that are assigned (IANA; RFC 4291).
UNICAST6 = ipaddress.ip_network("2000::/3")
#: First digits (from, to) and lengths of issuers: Visa, Mastercard, American Express, Diners, Discover, JCB, UnionPay.
ISSUERS = (
    ("4", "4", (13, 16, 19)), ("51", "55", (16,)), ("2221", "2720", (16,)), ("34", "34", (15,)), ("37", "37", (15,)),
    ("300", "305", (14,)), ("36", "36", (14,)), ("38", "39", (14,)), ("6011", "6011", (16, 19)),
    ("644", "659", (16, 19)), ("3528", "3589", (16, 19)), ("62", "62", (16, 17, 18, 19)),
)  # fmt: skip


class Params(Frozen):
    """What is looked for."""

    kinds: tuple[Kind, ...] = Field(KINDS, description="Of `email`, `ip`, `card`.")


def annotate(batch: pa.RecordBatch, params: Params) -> pa.RecordBatch:
    """Counts by kind, and the spans (in code points) with what would replace them."""
    texts = batch.column("text")
    promising = hints.hints(texts)
    found: list[list[dict[str, Any]]] = [[] for _ in range(batch.num_rows)]
    rows = np.flatnonzero(promising)
    for row, text in zip(rows.tolist(), texts.take(pa.array(rows)).to_pylist(), strict=True):
        found[row] = spans(text, tuple(kind for kind in params.kinds if promising[row] & _HINTS[kind]))
    counts = [pa.array([sum(span["reason"] == kind for span in each) for each in found], pa.int32()) for kind in KINDS]
    return pa.record_batch([*counts, pa.array(found, EDIT_TYPE)], schema=SCHEMA)


def spans(text: str, kinds: tuple[Kind, ...] = KINDS) -> list[dict[str, Any]]:
    """Spans of a text, sorted and disjoint; where two overlap the earlier, then the longer, stays."""
    hits = sorted((start, -end, kind) for kind in kinds for start, end in _FINDERS[kind](text))
    chosen: list[dict[str, Any]] = []
    reached = 0
    for start, negative_end, kind in hits:
        if start >= reached:
            reached = -negative_end
            replacement = f"<{kind.upper()}>"
            chosen.append({"start_cp": start, "end_cp": reached, "replacement": replacement, "reason": kind})
    return chosen


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of the others (ISO/IEC 7812-1, annex B)."""
    total = 0
    for position, character in enumerate(reversed(digits)):
        value = int(character) * (2 if position % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def _emails(text: str) -> Iterator[tuple[int, int]]:
    for match in EMAIL.finditer(text):
        found = match[0]
        if not (".." in found or ".@" in found or RESERVED.search(found) or NOBODY.match(found)):
            yield match.span()


def _addresses(text: str) -> Iterator[tuple[int, int]]:
    for match in IPV4.finditer(text):
        small = all(int(number) < SMALL for number in match[0].split("."))
        if not small and _public(match[0]) and not NUMBERED.search(text[max(0, match.start() - 16) : match.start()]):
            yield match.span()
    for match in IPV6.finditer(text):
        if len(match[0]) > 4 and _public(match[0]):
            yield match.span()


def _public(address: str) -> bool:
    """Whether it can be somebody's: by the registries of special addresses that RFC 6890 set up."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return found.is_global and not found.is_multicast and (found.version == 4 or found in UNICAST6)


def _cards(text: str) -> Iterator[tuple[int, int]]:
    for match in CARD.finditer(text):
        digits = match[0].replace(" ", "").replace("-", "")
        if _issued(digits) and len(set(digits)) > 1 and luhn(digits):
            yield match.span()


def _issued(digits: str) -> bool:
    return any(len(digits) in lengths and first <= digits[: len(first)] <= last for first, last, lengths in ISSUERS)


_FINDERS = {"email": _emails, "ip": _addresses, "card": _cards}

ANNOTATOR = Annotator(
    name="pii",
    version="2",
    description="Spans of e-mail addresses, public IP addresses and card numbers, with replacements.",
    source="RFC 5322 (practical subset), RFC 6890 for public addresses, ISO/IEC 7812 for card numbers.",
    params=Params,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
)
