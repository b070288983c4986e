"""Spans of personal data: e-mail addresses, public IP addresses, payment card numbers.

Patterns only propose; a rule decides: an address must be public, a card number must pass Luhn's check
(ISO/IEC 7812) and start as a card does. Every pattern has bounded repeats, so no text makes it slow, and
is searched only in documents that hold a character it cannot do without.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator

import pyarrow as pa
from pydantic import Field

from plinth.corpus.annotate.base import Annotator
from plinth.records import EDIT_TYPE, Frozen

KINDS = ("email", "ip", "card")
SCHEMA = pa.schema(
    [pa.field(kind, pa.int32(), nullable=False) for kind in KINDS] + [pa.field("spans", EDIT_TYPE, nullable=False)]
)
EMAIL = re.compile(
    r"(?<![\w.%+-])[A-Za-z0-9_%+-][\w.%+-]{0,63}@(?:[A-Za-z0-9][A-Za-z0-9-]{0,62}\.){1,8}[A-Za-z]{2,24}(?![\w@-])",
    re.ASCII,
)
IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)", re.ASCII)
IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])", re.ASCII)
CARD = re.compile(r"(?<![\w.-])[2-6]\d{3}(?:[ -]?\d{2,7}){2,4}(?![\w-])", re.ASCII)
#: Names kept for documentation by RFC 2606; an address there is nobody's.
RESERVED = re.compile(r"@(?:.{1,200}\.)?example(?:\.(?:com|net|org))?$|@localhost$|\.(?:test|invalid)$", re.IGNORECASE)
VERSION_BEFORE = re.compile(r"(?:version|ver|v|release)[\s:=]{0,3}$", re.IGNORECASE)


class Params(Frozen):
    """What is looked for."""

    kinds: tuple[str, ...] = Field(KINDS, description="Of `email`, `ip`, `card`.")


def annotate(batch: pa.RecordBatch, params: Params) -> pa.RecordBatch:
    """Counts by kind, and the spans (in code points) with what would replace them."""
    found = [spans(text, params.kinds) for text in batch.column("text").to_pylist()]
    counts = [pa.array([sum(s["reason"] == kind for s in each) for each in found], pa.int32()) for kind in KINDS]
    return pa.record_batch([*counts, pa.array(found, EDIT_TYPE)], schema=SCHEMA)


def spans(text: str, kinds: tuple[str, ...] = KINDS) -> list[dict[str, object]]:
    """Spans of a text, sorted and disjoint; where two overlap the earlier, then the longer, stays."""
    hits = sorted((start, -end, kind) for kind in kinds for start, end in _FINDERS[kind](text))
    chosen: list[dict[str, object]] = []
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
    if "@" not in text:
        return
    for match in EMAIL.finditer(text):
        if ".." not in match[0] and not RESERVED.search(match[0]):
            yield match.span()


def _addresses(text: str) -> Iterator[tuple[int, int]]:
    if "." in text:
        for match in IPV4.finditer(text):
            if _public(match[0]) and not VERSION_BEFORE.search(text, max(0, match.start() - 12), match.start()):
                yield match.span()
    if "::" in text or text.count(":") >= 7:
        for match in IPV6.finditer(text):
            if len(match[0]) > 4 and _public(match[0]):
                yield match.span()


def _public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


def _cards(text: str) -> Iterator[tuple[int, int]]:
    for match in CARD.finditer(text):
        digits = re.sub(r"[ -]", "", match[0])
        if 13 <= len(digits) <= 19 and len(set(digits)) > 2 and luhn(digits):
            yield match.span()


_FINDERS: dict[str, Callable[[str], Iterator[tuple[int, int]]]] = {
    "email": _emails,
    "ip": _addresses,
    "card": _cards,
}

ANNOTATOR = Annotator(
    name="pii",
    version="1",
    description="Spans of e-mail addresses, public IP addresses and card numbers, with replacements.",
    source="RFC 5322 (practical subset), RFC 6890 for public addresses, ISO/IEC 7812 for card numbers.",
    params=Params,
    schema=SCHEMA,
    reads=("text",),
    annotate=annotate,
)
