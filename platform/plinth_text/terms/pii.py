"""Candidates for personal data: one pass over the bytes that stops only where a rule may match.

The pass walks over runs of letters, digits, `_` and `-`; only runs with digits, long runs, `@` and `:` are examined,
each over a bounded number of bytes, so the time is linear in any text. The candidates are a superset of the matches of
the `pii` annotator, whose rules decide. Numbers without a form of their own are reported only near words that give
their meaning (`MEANINGS`).

Does not belong here: check digits, registries of addresses, replacements.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from plinth_text.arrays import I64, U8, U64
from plinth_text.compiled import compiled
from plinth_text.unicode import utf8


def places(texts: pa.Array) -> PiiPlaces:
    """All candidates of a column of texts."""
    data, offsets = utf8(texts)
    capacity = 1024 + int(offsets[-1] - offsets[0]) // 128
    while True:
        found = np.empty((capacity, 5), np.int64)
        size = scan_places(data, offsets, *table(), found)
        if size <= capacity:
            return PiiPlaces(*found[:size].T.copy())
        capacity = size


@compiled
def scan_places(data: U8, offsets: I64, words: U64, meanings: I64, found: I64) -> int:
    """Fill `found`, [P, 5], with candidates as far as it goes; returns how many there are."""


#: Kinds of candidates: an `@`, dotted numbers, hexadecimal groups, a number, letters and a number, a long run, a PEM
#: line.
AT, DOTTED, HEXES, NUMBER, LETTERED, RUN, PEM = range(7)


@dataclass(frozen=True)
class PiiPlaces:
    """Candidates in the order of the texts, [P].

    Args:
        doc: row of the text.
        kind: one of `AT`, …, `PEM`.
        start, end: bytes from the beginning of the text; a rule may read further than `end`.
        meaning: bits of the meanings of the words near it.
    """

    doc: I64
    kind: I64
    start: I64
    end: I64
    meaning: I64


# Words that give the meaning of a number beside them, in the languages of the rules, as hashes with a bit per meaning.
#
# A word is a run of ASCII letters and bytes above 127, lower-cased in ASCII; words with other capitals are listed in
# both forms. Words for other numbers (an order, a version, a book) end the search for context (`pii_words.h`).

#: Bits of a meaning.
(
    PHONE, CARD, IBAN, KEY, SSN, NINO, NIR, STEUER, DNI, CODICE, BSN, PESEL, PERSONNUMMER, CPF, SIN, AADHAAR, NISS, NIF,
    HETU, TFN, AHV, OTHER,
) = (1 << bit for bit in range(22))  # fmt: skip

MEANINGS: dict[int, str] = {
    PHONE: """tel tél Tél TÉL phone phones telephone mobile cell cellphone cellular fax telefax whatsapp sms telefon
        telefone telefono teléfono Teléfono telefoon telefonnummer mobil mobiel mobilnummer móvil Móvil movil celular
        téléphone Téléphone portable handy rufnummer hotline puhelin gsm dial landline voicemail cellulare тел Тел
        телефон Телефон факс 电话 联系电话 手机 電話 電話番号 电话： 联系电话： 手机： 電話： 電話番号：
        전화 전화번호 致电 fon phonenumber mobilephone tlf telf ph""",
    CARD: """card cards visa mastercard amex maestro discover credit debit creditcard cardnumber cc pan cvv cvc ccnum
        kreditkarte kreditkartennummer karte carte tarjeta carta cartão kaart kort karta карта карты""",
    IBAN: """iban bank account konto bankverbindung kontonummer compte cuenta conto rekening bic swift""",
    KEY: """key keys secret secrets token tokens password passwd passwort pwd passphrase apikey apisecret apitoken
        accesskey secretkey accesstoken authtoken auth authorization bearer credential credentials clientsecret
        privatekey signature jwt basic""",
    SSN: """ssn ssns social""",
    NINO: """nino insurance ni""",
    NIR: """nir sécu secu sécurité Sécurité insee immatriculation""",
    STEUER: """steuer steuerid idnr identifikationsnummer steueridentifikationsnummer steuerliche tin""",
    DNI: """dni nie nif documento identidad""",
    CODICE: """codice fiscale""",
    BSN: """bsn burgerservicenummer sofinummer burgerservice""",
    PESEL: """pesel""",
    PERSONNUMMER: """personnummer personnr samordningsnummer pnr""",
    CPF: """cpf""",
    SIN: """sin insurance nas""",
    AADHAAR: """aadhaar aadhar uidai uid आधार""",
    NISS: """niss rijksregister rijksregisternummer insz national registre""",
    NIF: """nif contribuinte""",
    HETU: """hetu henkilötunnus henkilotunnus personbeteckning""",
    TFN: """tfn tax""",
    AHV: """ahv avs ahvn13 navs oasi""",
    OTHER: """order orders invoice isbn issn version serial build tracking sku ticket case commit revision rev ref
        reference article model part lot batch doi pmid arxiv timestamp bestellung bestellnummer rechnung artikel
        commande facture pedido factura ordine fattura""",
}

_OFFSET, _PRIME = 0xCBF29CE484222325, 0x100000001B3
_SIZE = 1024


def word_hash(word: str) -> int:
    """64-bit FNV-1a of a word's bytes with ASCII capitals lowered."""
    value = _OFFSET
    for byte in word.encode():
        byte = byte + 32 if 65 <= byte <= 90 else byte
        value = ((value ^ byte) * _PRIME) % 2**64
    return value


@lru_cache(maxsize=1)
def table() -> tuple[U64, I64]:
    """Return hashes (0: free) and meanings, in open addressing."""
    hashes, meanings = np.zeros(_SIZE, np.uint64), np.zeros(_SIZE, np.int64)
    for meaning, words in MEANINGS.items():
        for word in words.split():
            hashed = word_hash(word)
            slot = hashed % _SIZE
            while hashes[slot] not in (0, hashed):
                slot = (slot + 1) % _SIZE
            hashes[slot] = hashed
            meanings[slot] |= meaning
    return hashes, meanings
