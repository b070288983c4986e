"""National identity, tax and insurance numbers, each with its format, its check digits, and the words that
must be near a match. A number in a distinctive format needs no words nearby, such as a US number with dashes or a
French number in seven groups.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from typing import NamedTuple

from plinth.corpus.annotate.pii.numbers import PiiHit, labelled, luhn, mod_11_10, named, verhoeff, weighted
from plinth_text import terms as words

END = rb"(?![\w-]|\.\d)"
_HETU = "0123456789ABCDEFHJKLMNPRSTUVWXY"
#: Province codes of GB/T 2260, and 81 to 83 for residents of Hong Kong, Macau and Taiwan.
_SECOND = ("12345", "123", "1234567", "123456", "01234", "12345", "1", "123")
_PROVINCES = frozenset(
    int(first + second) for first, seconds in zip("12345678", _SECOND, strict=True) for second in seconds
)
_DNI = "TRWAGMYFPDXBNJZSQVHLCKE"
#: Values of characters at odd positions of the codice fiscale (Decreto 23 dicembre 1976).
_ODD = dict(
    zip("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14,
         16, 10, 22, 25, 24, 23), strict=True)
)  # fmt: skip


class NationalId(NamedTuple):
    """Rule that recognizes one kind of national number.

    Args:
        name: country and kind of the number.
        form: regular expression, matched at the first character of the number.
        strong: function that takes the number as written and returns True if no words are needed nearby.
        meaning: bits of `pii_words` for the kinds of words, one of which must be near a number that is not `strong`.
        valid: function that checks the digits; its argument has only the number's letters and digits.
        source: publisher of the rule.
    """

    name: str
    form: re.Pattern[bytes]
    strong: Callable[[bytes], bool]
    meaning: int
    valid: Callable[[str], bool]
    source: str


def ssn(text: str) -> bool:
    """Check a US Social Security number. Areas 000, 666 and 900–999, group 00 and serial 0000 are never issued. Two
    more numbers are rejected because they were printed in advertisements."""
    area = text[:3]
    given = area not in ("000", "666") and area < "900" and text[3:5] != "00" and text[5:] != "0000"
    return given and text not in ("078051120", "219099999") and not ("987654320" <= text <= "987654329")


def nino(text: str) -> bool:
    return text[:2] not in ("BG", "GB", "NK", "KN", "TN", "NT", "ZZ")


def nir(text: str) -> bool:
    number = text[:13].replace("2A", "19").replace("2B", "18")
    return number.isdigit() and 97 - int(number) % 97 == int(text[13:])


def steuer_id(text: str) -> bool:
    """Check a German tax number. Among its first ten digits, one digit occurs two or three times, and all others at
    most once."""
    counts = sorted((text[:10].count(digit) for digit in set(text[:10])), reverse=True)
    return text[0] != "0" and counts[0] in (2, 3) and all(count == 1 for count in counts[1:]) and mod_11_10(text)


def dni(text: str) -> bool:
    return _DNI[int(text[:-1]) % 23] == text[-1]


def nie(text: str) -> bool:
    return dni(str("XYZ".index(text[0])) + text[1:])


def codice_fiscale(text: str) -> bool:
    total = sum(
        _ODD[c] if place % 2 == 0 else int(c, 36) - (10 if c.isalpha() else 0) for place, c in enumerate(text[:15])
    )
    return chr(65 + total % 26) == text[15] and 1 <= int(text[9:11]) % 40 <= 31


def bsn(text: str) -> bool:
    return weighted(text, (9, 8, 7, 6, 5, 4, 3, 2, -1)) % 11 == 0 and len(set(text)) > 1


def pesel(text: str) -> bool:
    month, day = int(text[2:4]) % 20, int(text[4:6])
    return 1 <= month <= 12 and 1 <= day <= 31 and weighted(text, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)) % 10 == 0


def personnummer(text: str) -> bool:
    """Check a Swedish personal number. In coordination numbers, the day of birth is increased by 60."""
    month, day = int(text[-8:-6]), int(text[-6:-4])
    return 1 <= month <= 12 and (1 <= day <= 31 or 61 <= day <= 91) and luhn(text[-10:])


def cpf(text: str) -> bool:
    first = weighted(text[:9], range(10, 1, -1)) * 10 % 11 % 10
    second = weighted(text[:10], range(11, 1, -1)) * 10 % 11 % 10
    return len(set(text)) > 1 and text[9:] == f"{first}{second}"


def sin(text: str) -> bool:
    return text[0] not in "08" and luhn(text)


def aadhaar(text: str) -> bool:
    return text[0] in "23456789" and verhoeff(text)


def niss(text: str) -> bool:
    """Check a Belgian national number. For people born from 2000 on, a 2 is prepended for the check."""
    month, day = int(text[2:4]), int(text[4:6])
    checks = {97 - int(text[:9]) % 97, 97 - int("2" + text[:9]) % 97}
    return month <= 12 and day <= 31 and int(text[9:]) in checks


def nif(text: str) -> bool:
    rest = weighted(text[:8], range(9, 1, -1)) % 11
    return text[0] in "123" and int(text[8]) == (0 if rest < 2 else 11 - rest)


def hetu(text: str) -> bool:
    """Check a Finnish personal identity code, whose seventh character is the sign of the century."""
    day, month = int(text[:2]), int(text[2:4])
    return 1 <= day <= 31 and 1 <= month <= 12 and _HETU[int(text[:6] + text[7:10]) % 31] == text[10]


def tfn(text: str) -> bool:
    return weighted(text, (1, 4, 3, 7, 5, 8, 6, 9, 10)) % 11 == 0 and len(set(text)) > 1


def ahv(text: str) -> bool:
    """Check the EAN-13 check digit of a Swiss AHV number."""
    return weighted(text, (1, 3) * 6 + (1,)) % 10 == 0


def resident_id(text: str) -> bool:
    """Check the province, county, date of birth, sequence and check character of a Chinese resident number (GB 11643,
    ISO/IEC 7064 MOD 11-2)."""
    try:
        born = date(int(text[6:10]), int(text[10:12]), int(text[12:14]))
    except ValueError:
        return False
    known = int(text[:2]) in _PROVINCES and 1900 <= born.year < 2050
    weights = [2**place % 11 for place in range(17, 0, -1)]
    return known and "10X98765432"[weighted(text[:17], weights) % 11] == text[17].upper()


def _form(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern + END)


def _has(sign: bytes) -> Callable[[bytes], bool]:
    return lambda text: sign in text


def _never(text: bytes) -> bool:
    return False


NIR_FORM = rb"[12] ?\d\d ?(?:0[1-9]|1[0-2]|[2-9]\d) ?(?:\d\d|2[AB]) ?\d{3} ?\d{3} ?\d\d"
#: Rules for numbers that begin with a digit, in matching order.
NUMBERS = (
    NationalId(
        "us_ssn", _form(rb"\d{3}([- ]?)\d\d\1\d{4}"), _has(b"-"), words.SSN, ssn, "Social Security Administration"
    ),
    NationalId("fr_nir", _form(NIR_FORM), lambda text: text.count(b" ") == 6, words.NIR, nir, "INSEE"),
    NationalId("br_cpf", _form(rb"(?:\d{3}\.\d{3}\.\d{3}-|\d{9})\d\d"), _has(b"."), words.CPF, cpf, "Receita Federal"),
    NationalId(
        "ch_ahv", _form(rb"756(\.?)\d{4}\1\d{4}\1\d\d"), _has(b"."), words.AHV, ahv, "Zentrale Ausgleichsstelle"
    ),
    NationalId(
        "de_steuer_id", _form(rb"\d\d( ?)\d{3}\1\d{3}\1\d{3}"), _never, words.STEUER, steuer_id, "BZSt; ISO/IEC 7064"
    ),
    NationalId("pl_pesel", _form(rb"\d{11}"), _never, words.PESEL, pesel, "Ministerstwo Cyfryzacji"),
    NationalId("be_niss", _form(rb"\d\d(\.?)\d\d\1\d\d-?\d{3}\1\d\d"), _never, words.NISS, niss, "Rijksregister"),
    NationalId("nl_bsn", _form(rb"\d{4}([ .]?)\d\d\1\d{3}|\d{3} \d{3} \d{3}"), _never, words.BSN, bsn, "RvIG"),
    NationalId(
        "se_personnummer", _form(rb"(?:\d\d)?\d{6}[-+]?\d{4}"), _never, words.PERSONNUMMER, personnummer, "Skatteverket"
    ),
    NationalId("in_aadhaar", _form(rb"\d{4}([ -]?)\d{4}\1\d{4}"), _never, words.AADHAAR, aadhaar, "UIDAI"),
    NationalId("ca_sin", _form(rb"\d{3}([ -]?)\d{3}\1\d{3}"), _never, words.SIN, sin, "Service Canada"),
    NationalId("pt_nif", _form(rb"\d{3}( ?)\d{3}\1\d{3}"), _never, words.NIF, nif, "Autoridade Tributária"),
    NationalId("au_tfn", _form(rb"\d{3}( ?)\d{3}\1\d{3}"), _never, words.TFN, tfn, "Australian Taxation Office"),
    NationalId(
        "cn_resident_id", _form(rb"\d{6}([ -]?)\d{8}\1\d{3}[\dXx]"), lambda text: True, 0, resident_id, "GB 11643-1999"
    ),
    NationalId("es_dni", _form(rb"\d{8}-?[A-Z]"), _never, words.DNI, dni, "Ministerio del Interior"),
    NationalId("fi_hetu", _form(rb"\d{6}[-+A]\d{3}[0-9A-Y]"), _never, words.HETU, hetu, "Digi- ja väestötietovirasto"),
)
#: Rules for numbers that begin with capital letters.
LETTERED = (
    NationalId(
        "it_codice_fiscale",
        _form(rb"[A-Z]{6}\d\d[ABCDEHLMPRST]\d\d[A-Z]\d{3}[A-Z]"),
        lambda text: True,
        words.CODICE,
        codice_fiscale,
        "Agenzia delle Entrate",
    ),
    NationalId(
        "uk_nino",
        _form(rb"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d\d ?\d\d ?\d\d ?[A-D]"),
        _never,
        words.NINO,
        nino,
        "HM Revenue & Customs, NIM39110",
    ),
    NationalId("es_nie", _form(rb"[XYZ]\d{7}-?[A-Z]"), _never, words.DNI, nie, "Ministerio del Interior"),
)
_SIGNS = re.compile(rb"[ .-]")


def number(raw: bytes, start: int, meaning: int) -> PiiHit | None:
    """Match a national number that begins with a digit. A British number written in groups begins three bytes before
    `start`."""
    if meaning & words.NINO and raw[start - 1 : start] == b" ":
        found = lettered(raw, start - 3, meaning) if start >= 3 else None
        if found:
            return found
    return _first(NUMBERS, raw, start, meaning)


def lettered(raw: bytes, start: int, meaning: int) -> PiiHit | None:
    """Match a national number that begins with one, two or six capital letters."""
    if raw[start - 1 : start].isalnum() and start:
        return None
    return _first(LETTERED, raw, start, meaning)


def _first(rules: tuple[NationalId, ...], raw: bytes, start: int, meaning: int) -> PiiHit | None:
    for rule in rules:
        if rule.strong is _never and not meaning & rule.meaning:
            continue
        match = rule.form.match(raw, start)
        if match is None or not (meaning & rule.meaning or rule.strong(match[0])):
            continue
        if rule.name == "us_ssn" and (labelled(raw, start) or (not meaning & rule.meaning and named(raw, start))):
            continue  # no check digit, and `part no 123-45-6789` has the same format
        plain = match[0] if rule.name == "fi_hetu" else _SIGNS.sub(b"", match[0])
        if rule.valid(plain.replace(b"+", b"").decode() if rule.name != "fi_hetu" else plain.decode()):
            return PiiHit(start, match.end(), f"national/{rule.name}")
    return None
