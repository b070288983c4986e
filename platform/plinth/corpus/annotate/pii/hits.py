"""Shared by the rules for personal data: a hit, its kind, and check digits of published schemes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from plinth_text.terms.pii import MEANINGS, OTHER

#: Words for a number that is no person's, at most one word such as `number` further: `part no.`, `S/N`, `order #`.
_LABELS = f"""{MEANINGS[OTHER]} item product catalog catalogue cat drawing docket patent permit claim file zip asset
    equipment barcode upc ean gtin nsn fig figure table page artikelnummer artikelnr bestellnr teilenummer teilenr
    rechnungsnummer rechnungsnr seriennummer kundennummer aktenzeichen az vorgang steuernummer""".split()
_LABELLED = re.compile(
    rb"(?<![A-Za-z\x80-\xff])(?:" + "|".join(_LABELS).encode() + rb"|[ps]\.?/?n)s?[\s_:.,#=(\"'-]{0,4}"
    rb"(?:(?:no|nos|nr|num|numbers?|nummer|code|id|is|was)[\s_:.,#=(\"'-]{1,4}){0,2}\Z",
    re.IGNORECASE,
)


class PiiHit(NamedTuple):
    """A span in bytes from the beginning of a text; the reason is `kind` or `kind/rule`."""

    start: int
    end: int
    reason: str

    @property
    def kind(self) -> str:
        return self.reason.partition("/")[0]


def labelled(raw: bytes, start: int) -> bool:
    """Whether the words right before a number say that it is a part's, an order's, a file's."""
    return bool(_LABELLED.search(raw, max(0, start - 40), start))


def weighted(digits: str, weights: Sequence[int]) -> int:
    """Sum of digits times weights."""
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=True))


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of the others (ISO/IEC 7812-1, annex B)."""
    total = 0
    for position, character in enumerate(reversed(digits)):
        value = int(character) * (2 if position % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def mod_11_10(digits: str) -> bool:
    """ISO/IEC 7064, MOD 11,10."""
    product = 10
    for digit in digits[:-1]:
        total = (int(digit) + product) % 10 or 10
        product = 2 * total % 11
    return (11 - product) % 10 == int(digits[-1])


#: Multiplication in the dihedral group of ten elements, and the permutation by position (Verhoeff 1969).
_PRODUCT = (
    "0123456789", "1234067895", "2340178956", "3401289567", "4012395678",
    "5987604321", "6598710432", "7659821043", "8765932104", "9876543210",
)  # fmt: skip
_SHUFFLE = (
    "0123456789", "1576283094", "5803796142", "8916043527", "9453126870", "4286573901", "2793806415", "7046913258",
)  # fmt: skip


def verhoeff(digits: str) -> bool:
    """Whether the last digit is Verhoeff's check digit of the others."""
    state = 0
    for position, digit in enumerate(reversed(digits)):
        state = int(_PRODUCT[state][int(_SHUFFLE[position % 8][int(digit)])])
    return state == 0
