"""Payment cards, bank account and telephone numbers; check digits of published schemes; the class of a match."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from plinth_text import terms
from plinth_text.terms import MEANINGS, OTHER, PHONE

#: Words that mark a number as not personal, optionally followed by a word such as `number`: `part no.`, `order #`.
_LABELS = f"""{MEANINGS[OTHER]} item product catalog catalogue cat drawing docket patent permit claim file zip asset
    equipment barcode upc ean gtin nsn fig figure table page artikelnummer artikelnr bestellnr teilenummer teilenr
    rechnungsnummer rechnungsnr seriennummer kundennummer aktenzeichen az vorgang steuernummer""".split()
_LABELLED = re.compile(
    rb"(?<![A-Za-z\x80-\xff])(?:" + "|".join(_LABELS).encode() + rb"|[ps]\.?/?n)s?[\s_:.,#=(\"'-]{0,4}"
    rb"(?:(?:no|nos|nr|num|numbers?|nummer|code|id|is|was)[\s_:.,#=(\"'-]{1,4}){0,2}\Z",
    re.IGNORECASE,
)


class PiiHit(NamedTuple):
    """Match of personal data. The span is in bytes from the start of the text. The reason is `kind` or `kind/rule`."""

    start: int
    end: int
    reason: str

    @property
    def kind(self) -> str:
        return self.reason.partition("/")[0]


def labelled(raw: bytes, start: int) -> bool:
    """Return True if the words directly before a number mark it as another number, such as a part, order or file
    number."""
    return bool(_LABELLED.search(raw, max(0, start - 40), start))


def weighted(digits: str, weights: Sequence[int]) -> int:
    """Return the weighted sum of digits."""
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=True))


def luhn(digits: str) -> bool:
    """Return True if the last digit is the Luhn check digit of the digits before it (ISO/IEC 7812-1, annex B)."""
    total = 0
    for position, character in enumerate(reversed(digits)):
        value = int(character) * (2 if position % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def mod_11_10(digits: str) -> bool:
    """Return True if the last digit is the check digit of the digits before it (ISO/IEC 7064, MOD 11,10)."""
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
    """Return True if the last digit is Verhoeff's check digit of the digits before it."""
    state = 0
    for position, digit in enumerate(reversed(digits)):
        state = int(_PRODUCT[state][int(_SHUFFLE[position % 8][int(digit)])])
    return state == 0


# Payment cards, bank accounts and telephone numbers.
#
# A card number needs an issuer's first digits, that issuer's length and a valid Luhn check digit. Without gaps it also
# needs a word for cards nearby, because one in fifty random numbers of 16 digits passes these checks. An IBAN needs its
# country's length and the remainder 1 (ISO 13616, ISO/IEC 7064 MOD 97-10). A telephone number needs a country code and
# a valid length after `+` (ITU-T E.164), the format of the North American plan, or a word for telephones before it.

CARD = re.compile(rb"(?:\d{13,19}|\d{4}([ -])\d{4}\1\d{4}\1\d{4}|\d{4}([ -])\d{6}\2\d{4,5})(?![\w-]|\.\d)")
#: First digits (from, to) and lengths, by issuer: Visa, Mastercard, American Express, Diners, Discover, JCB, UnionPay.
ISSUERS = (
    ("4", "4", (13, 16, 19)), ("51", "55", (16,)), ("2221", "2720", (16,)), ("34", "34", (15,)), ("37", "37", (15,)),
    ("300", "305", (14,)), ("36", "36", (14,)), ("38", "39", (14,)), ("6011", "6011", (16, 19)),
    ("644", "659", (16, 19)), ("3528", "3589", (16, 19)), ("62", "62", (16, 17, 18, 19)),
)  # fmt: skip

IBAN = re.compile(rb"[A-Z]{2}\d{2}(?:[A-Z0-9]{10,30}|(?: [A-Z0-9]{4}){2,7}(?: [A-Z0-9]{1,4})?)(?![A-Za-z0-9])")
#: Length of an IBAN by country (SWIFT, IBAN Registry).
_BY_LENGTH = {
    15: "NO", 16: "BE", 18: "DK FI FO GL NL", 19: "MK SI", 20: "AT BA EE KZ LT LU XK", 21: "CH HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ TL", 24: "AD CZ ES MD PK RO SA SE SK TN VG",
    25: "LY PT ST", 26: "IS TR", 27: "FR GR IT MC MR SM", 28: "AL AZ BY CY DO GT HU LB PL SV", 29: "BR EG PS QA UA",
    30: "JO KW MU", 31: "MT SC", 32: "LC",
}  # fmt: skip
IBAN_LENGTHS = {country: size for size, countries in _BY_LENGTH.items() for country in countries.split()}
#: Number of digits after the country code (ITU-T E.164 and the plans it lists); other countries have 6 to 12.
PLANS = {
    "1": (10, 10), "7": (10, 10), "20": (8, 10), "27": (9, 9), "30": (10, 10), "31": (9, 9), "32": (8, 9), "33": (9, 9),
    "34": (9, 9), "36": (8, 9), "39": (6, 11), "40": (9, 9), "41": (9, 9), "43": (7, 13), "44": (9, 10), "45": (8, 8),
    "46": (7, 10), "47": (8, 8), "48": (9, 9), "49": (7, 12), "51": (8, 9), "52": (10, 10), "54": (10, 11),
    "55": (10, 11), "56": (9, 9), "57": (8, 10), "58": (10, 10), "60": (8, 10), "61": (9, 9), "62": (8, 12),
    "63": (8, 10), "64": (8, 10), "65": (8, 8), "66": (8, 9), "81": (9, 10), "82": (8, 10), "84": (9, 10),
    "86": (10, 11), "90": (10, 10), "91": (10, 10), "92": (9, 10), "93": (9, 9), "94": (9, 9), "95": (7, 10),
    "98": (10, 10),
    "212": (9, 9), "213": (8, 9), "216": (8, 8), "218": (9, 9), "221": (9, 9), "233": (9, 9), "234": (8, 10),
    "254": (9, 9), "255": (9, 9), "256": (9, 9), "263": (9, 9), "351": (9, 9), "352": (6, 11), "353": (7, 9),
    "354": (7, 9), "355": (8, 9), "356": (8, 8), "357": (8, 8), "358": (6, 11), "359": (8, 9), "370": (8, 8),
    "371": (8, 8), "372": (7, 8), "373": (8, 8), "374": (8, 8), "375": (9, 9), "380": (9, 9), "381": (8, 9),
    "385": (8, 9), "386": (8, 8), "387": (8, 8), "389": (8, 8), "420": (9, 9), "421": (9, 9), "423": (7, 9),
    "852": (8, 8), "853": (8, 8), "855": (8, 9), "880": (10, 10), "886": (8, 9), "960": (7, 7), "961": (7, 8),
    "962": (8, 9), "963": (8, 9), "964": (10, 10), "965": (8, 8), "966": (9, 9), "968": (8, 8), "971": (8, 9),
    "972": (8, 9), "973": (8, 8), "974": (8, 8), "977": (10, 10), "992": (9, 9), "994": (9, 9), "995": (9, 9),
    "998": (9, 9),
}  # fmt: skip
#: Prefixes of country codes with three digits in which every code is assigned or reserved for a country.
OTHER_CODES = re.compile(r"2[1-69]\d|3[578]\d|42\d|50\d|59\d|6[789]\d|85\d|88\d|9[67]\d|99[2-68]")
NORTH_AMERICA = re.compile(
    rb"(?:1-)?(?:\(([2-9]\d{2})\)[ -]?|([2-9]\d{2})([-. ]))([2-9]\d{2})([-. ])(\d{4})(?![\w-]|\.\d)"
)
#: Area code in brackets or before a slash, as Germany, Austria and others write it (DIN 5008 before 2001).
TRUNK = re.compile(rb"\(0[1-9]\d{1,3}\)(?: / |[ /-])?[1-9]|0[1-9]\d{1,3}(?: / |/)[1-9]")
GROUP = re.compile(rb"\d+")
DATE = re.compile(
    rb"(?:19|20)\d\d[-/. ](?:0?[1-9]|1[0-2])[-/. ]|\d{1,2}[-/.]\d{1,2}[-/.](?:19|20)\d\d(?!\d)|"
    rb"(?:19|20)\d\d[-/ ](?:19|20)\d\d(?!\d)"
)
#: Word before a number, and words that may occur between `telephone` and the number.
LAST_WORD = re.compile(rb"([A-Za-z\x80-\xff]+)[^A-Za-z0-9\x80-\xff]{0,6}\Z")
BETWEEN = frozenset(b"no nr number numbers num is at us me on under us the my our work home office direct n".split())
PHONE_WORDS = frozenset(word.lower().encode() for word in MEANINGS[PHONE].split())


def card(raw: bytes, start: int, meaning: int) -> PiiHit | None:
    """Match a payment card."""
    match = CARD.match(raw, start)
    if match is None:
        return None
    digits = re.sub(rb"\D", b"", match[0]).decode()
    if not (match[1] or match[2] or meaning & terms.CARD):
        return None
    return PiiHit(start, match.end(), "card") if issued(digits) and len(set(digits)) > 1 and luhn(digits) else None


def issued(digits: str) -> bool:
    """Return True if an issuer uses this prefix and length for its payment cards."""
    return any(len(digits) in lengths and first <= digits[: len(first)] <= last for first, last, lengths in ISSUERS)


def iban(raw: bytes, start: int) -> PiiHit | None:
    """Match an international bank account number (IBAN), with or without a gap after every four characters."""
    size = IBAN_LENGTHS.get(raw[start : start + 2].decode("latin-1"), 0)
    match = IBAN.match(raw, start)
    if match is None or not size:
        return None
    compact = match[0].replace(b" ", b"").decode()
    if b" " in match[0]:  # the last group may be the word after the number
        size_with_gaps = size + (size - 1) // 4
        compact, end = compact[:size], start + size_with_gaps
        if raw[end : end + 1].isalnum():
            return None
    else:
        end = match.end()
    return PiiHit(start, end, "iban") if len(compact) == size and iban_valid(compact) else None


def iban_valid(text: str) -> bool:
    """Return True if the check digits of an IBAN are valid: the remainder modulo 97 is 1 (ISO 13616)."""
    return int("".join(str(int(character, 36)) for character in text[4:] + text[:4])) % 97 == 1


def phone(raw: bytes, start: int, end: int, meaning: int) -> PiiHit | None:
    """Match a telephone number that begins at `start`, or at the `+` or bracket before `start`."""
    before = raw[start - 1 : start]
    if before == b"+":
        return _international(raw, start, end, bool(meaning & PHONE))
    first = start - 1 if before == b"(" else start
    match = NORTH_AMERICA.match(raw, first)
    if match and (match[1] or match[3] == b"-" or meaning & PHONE):
        return PiiHit(first, match.end(), "phone") if _american((match[1] or match[2]), match[4], match[6]) else None
    if meaning & PHONE:
        return _national(raw, first, start, end)
    # in `(030 / 123456, mornings)` the bracket belongs to the sentence
    begin = first if TRUNK.match(raw, first) else start
    return _trunk(raw, begin, start, end) if TRUNK.match(raw, begin) else None


def _american(area: bytes, exchange: bytes, line: bytes) -> bool:
    """Return True if a North American telephone number is valid (NANPA). Area code and exchange are at least 200 and
    not service codes (N11), and the number is not reserved for fiction (555-0100 to 555-0199)."""
    fiction = exchange == b"555" and line.startswith(b"01")
    codes = all(code[:1] >= b"2" and code[1:] != b"11" for code in (area, exchange))
    return codes and not fiction


def _international(raw: bytes, start: int, end: int, named: bool) -> PiiHit | None:
    groups = _groups(raw, start, end)
    if groups is None or raw[start - 2 : start - 1].isalnum():
        return None
    # a `+` and digits at the start of a line may also be an added line of a diff
    if len(groups) == 1 and not named and raw[start - 2 : start - 1] in (b"", b"\n"):
        return None
    digits = "".join(group for _, group in groups)
    code = next((digits[:size] for size in (1, 2, 3) if digits[:size] in PLANS), "")
    if not code and (OTHER_CODES.match(digits) is None or not (named or len(groups) > 1)):
        return None
    if code == "1" and not _american(*(digits[part].encode() for part in (slice(1, 4), slice(4, 7), slice(7, 11)))):
        return None
    least, most = PLANS.get(code, (6, 12))
    total, reached, national = 0, start, -(len(code) or 3)
    for stop, group in groups:
        if group == "0" and total and raw[stop : stop + 1] == b")":
            reached = stop
            continue  # `+44 (0) 20`: the omitted digit
        if national + len(group) > most:
            break
        total, national, reached = total + len(group), national + len(group), stop
    return PiiHit(start - 1, reached, "phone") if least <= national <= most else None


def _trunk(raw: bytes, first: int, start: int, end: int) -> PiiHit | None:
    """Match a telephone number that begins with an area code in brackets or before a slash. The match must have at
    least nine digits, and must not be part of a path or a tax number (`021/815/08150`)."""
    before = raw[first - 1 : first] if first else b""
    if before.isalnum() or before in (b"/", b"=", b"-", b"_", b".") or labelled(raw, first):
        return None
    hit = _national(raw, first, start, end)
    if hit is None:
        return None
    text, after = raw[start : hit.end], raw[hit.end : hit.end + 1]
    enough = 9 <= sum(48 <= byte <= 57 for byte in text) <= 13
    return hit if enough and text.count(b"/") <= 1 and b"." not in text and after not in (b"/", b"-") else None


def _national(raw: bytes, first: int, start: int, end: int) -> PiiHit | None:
    groups = _groups(raw, start, end)
    if groups is None or DATE.match(raw, start):
        return None
    total, reached = 0, start
    for stop, group in groups:
        if total + len(group) > 15 or (total >= 10 and raw[reached : reached + 1] == b" "):
            break
        total, reached = total + len(group), stop
    trunk = groups[0][1].startswith("0")
    if not 7 <= total <= 15 or (total > 12 and not groups[0][1].startswith("00")):
        return None
    if len({*groups[0][1]}) == 1 and len(groups) == 1:
        return None
    return PiiHit(first, reached, "phone") if (trunk and total >= 8) or named(raw, first) else None


def named(raw: bytes, start: int) -> bool:
    """Return True if the word before a number announces a telephone number, such as `phone`."""
    at = start
    for _ in range(3):
        match = LAST_WORD.search(raw, max(0, at - 40), at)
        if match is None:
            return False
        word = match[1].lower()
        if word in PHONE_WORDS:
            return True
        if word not in BETWEEN:
            return False
        at = match.start()
    return False


def _groups(raw: bytes, start: int, end: int) -> list[tuple[int, str]] | None:
    """Return the end and the digits of each group of a number. Return None if the number continues as a word or a
    fraction."""
    after = raw[end : end + 2]
    if (after[:1] in b"%_" and after) or after[:1].isalpha() or (after[:1] in (b".", b",") and after[1:].isdigit()):
        return None
    return [(match.end(), match[0].decode()) for match in GROUP.finditer(raw, start, end)]
