"""Search for lexicon terms, including obfuscated terms, and for candidates for personal data."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth_text.arrays import I64, U8, U64, Bools
from plinth_text.compiled import compiled
from plinth_text.unicode import utf8
from plinth_text.words import ngram_hashes, scratch

# Find the words and phrases of a lexicon in texts: whole words only, in any case, and lightly obfuscated ones.
#
# A term matches where its words stand one after the other, by the words of `plinth_text.words`; of terms that begin at
# one word the longest counts. A term of one word is also found obfuscated, where the text shows one of these signs:
#
# - digits and signs for letters (`h3ll0`, `$pam`), at least one letter among them;
# - a letter three times or more in a row (`spaaaam`): then runs count once, in text and term;
# - single letters with one and the same character between them (`s.p.a.m`, `s p a m`), three or more;
# - accents, letters of other alphabets that look the same, wide letters, invisible characters inside.
#
# Spans are in code points. Letters: D texts, T terms, H hits.

#: Words of the longest phrase.
MAX_WORDS = 8
#: Letters of the shortest obfuscated term, and top bits of a hash that a filter takes; as in `obfuscation`'s C.
MIN_LETTERS, FILTER_BITS = 3, 16


@dataclass(frozen=True)
class TermHits:
    """Hits in all texts, in reading order and without overlap; text d has the hits `starts[d]:starts[d + 1]`.

    Args:
        starts: [D + 1].
        terms: [H] positions in the list of terms.
        spans: [H, 2] first code point, and end (exclusive).
        obfuscated: [H] True if the text obfuscated the term.
    """

    starts: I64
    terms: I64
    spans: I64
    obfuscated: Bools


@dataclass(frozen=True)
class _Table:
    """Sorted hashes, the number that belongs to each hash (a term, or a number of words), and a filter of their top
    bits."""

    hashes: U64
    terms: I64
    bits: Bools


class TermTable:
    """Search table for a list of terms.

    Raises:
        ValueError: a term has no words, or more than `MAX_WORDS`.
    """

    def __init__(self, terms: Sequence[str]) -> None:
        self.terms = tuple(terms)
        phrases: dict[int, int] = {}
        firsts: dict[int, int] = {}
        skeletons: dict[int, int] = {}
        collapsed: dict[int, int] = {}
        for index, term in enumerate(self.terms):
            words = _word_hashes(term)
            if not 0 < words.size <= MAX_WORDS:
                raise ValueError(f"{term!r} has {words.size} words, expected 1 to {MAX_WORDS}")
            phrases.setdefault(joined(words), index)
            firsts[int(words[0])] = max(firsts.get(int(words[0]), 0), words.size)
            if words.size == 1:
                letters, plain, runs = skeleton(np.frombuffer(term.encode(), dtype=np.uint8), fold_table())
                if letters >= MIN_LETTERS:
                    skeletons.setdefault(plain, index)
                    collapsed.setdefault(runs, index)
        self._tables = tuple(_table(one) for one in (firsts, phrases, skeletons, collapsed))

    def find(self, texts: pa.Array, obfuscated: bool = True) -> TermHits:
        """Return all hits of the terms in the texts.

        Args:
            obfuscated: True to find obfuscated terms as well.
        """
        data, offsets = utf8(texts)
        words = scratch(offsets)
        ends = np.empty((words.size, 2), dtype=np.int64)
        starts = np.zeros(offsets.size, dtype=np.int64)
        tables: Any = [part for one in self._tables for part in (one.hashes, one.terms, one.bits)]
        capacity = 1024 + int(offsets[-1] - offsets[0]) // 128
        while True:
            found = np.empty((capacity, 4), dtype=np.int64)
            size = find_terms(data, offsets, words, ends, starts, obfuscated, fold_table(), *tables, found)  # type: ignore[call-arg]
            if size <= capacity:
                break
            capacity = size
        return TermHits(starts, found[:size, 0].copy(), found[:size, 1:3].copy(), found[:size, 3].astype(np.bool_))

    @staticmethod
    def word_counts(texts: pa.Array) -> I64:
        """Return the number of words of every text, [D]."""
        starts, _ = ngram_hashes(texts, 1)
        return np.diff(starts)


def _table(values: dict[int, int]) -> _Table:
    keys = np.array(sorted(values), dtype=np.uint64)
    bits = np.zeros(1 << FILTER_BITS, dtype=np.bool_)
    bits[keys >> np.uint64(64 - FILTER_BITS)] = True
    return _Table(keys, np.array([values[int(key)] for key in keys], dtype=np.int64), bits)


def _word_hashes(term: str) -> U64:
    data, offsets = utf8(pa.array([term], pa.large_string()))
    words = scratch(offsets)
    ends = np.empty((words.size, 2), dtype=np.int64)
    return words[: word_spans(data, offsets[0], offsets[1], words, ends)]


@compiled
def find_terms(
    data: U8, offsets: I64, words: U64, ends: I64, starts: I64, obfuscated: bool, letters: npt.NDArray[np.uint32],
    firsts: U64, lengths: I64, first_bits: Bools, phrases: U64, terms: I64, phrase_bits: Bools,
    skeletons: U64, skeleton_terms: I64, skeleton_bits: Bools, runs: U64, run_terms: I64, run_bits: Bools, found: I64,
) -> int:  # fmt: skip
    """Fill `found`, [H, 4], with terms, spans and obfuscation flags, up to its size. Return the number of hits H.

    `words` and `ends`, [W, 2], are scratch memory for the longest text.
    """


@compiled
def word_spans(data: U8, start: int, end: int, words: U64, ends: I64) -> int:
    """Write the hashes of words into `words`, and their first byte and end (exclusive) into `ends`.

    Return the number of words.
    """


@compiled
def joined(words: U64) -> int:
    """Return the hash of a phrase from the hashes of its words."""


@compiled
def skeleton(data: U8, letters: npt.NDArray[np.uint32]) -> tuple[int, int, int]:
    """Return the number of letters in a word, and two hashes of its letters: as written, and with repeated letters
    merged."""


# The plain letter that a character stands for in an obfuscated word: accents, lookalikes, signs.
#
# A small table for code points below U+2100, and arithmetic for wide letters (`fold_letters.h`). It uses Python's
# decompositions of Latin letters, which Unicode's stability policy never changes. The lookalikes are those of Unicode's
# confusables (UTS 39) that are letters of Cyrillic and Greek with the shape of one Latin letter.

#: A code of the table: the letter's code point, and flags.
FOLDED = 0x1FFFFF  # bits of the letter; 0: separates pieces
LEET = 1 << 21  # a sign of obfuscation: anything but a plain letter
BOTH = 1 << 22  # may be i or l
SIGN = 1 << 23  # by itself no letter that could be meant: a digit, a sign, a letter of another alphabet
MARK = 1 << 24  # a punctuation mark that ends sentences or separates: a letter only before another one
INVISIBLE = 1  # the letter of a character without a glyph
LEET_L = ord("l")

_SIGNS = {"0": "o", "3": "e", "4": "a", "5": "s", "6": "g", "7": "t", "8": "b", "9": "g", "@": "a", "$": "s", "€": "e"}
_I_OR_L = "1!|"
#: Each with the letter that it looks like: small Cyrillic and Greek, then capital.
_ALIKE = (
    "аa еe оo рp сc уy хx іi јj ѕs ԁd һh кk мm нh тt вb αa εe ρp οo υu νv ιi κk τt γy "
    "ІI ЈJ ЅS АA ЕE ОO РP СC УY ХX КK МM НH ТT ВB ΑA ΕE ΟO ΡP ΥY ΝN ΙI ΚK ΤT ΜM ΒB ΖZ ΧX ΗH"
)
_LOOKALIKES = _ALIKE.split()
_INVISIBLES = (0xAD, 0x200B, 0x200C, 0x200D, 0x2060)


def _base(point: int) -> int:
    """Return the ASCII letter that is left if the accents of a character are removed, or 0 if there is none."""
    first = unicodedata.normalize("NFD", chr(point))[0].lower()
    return ord(first) if first.isascii() and first.isalpha() else 0


@lru_cache(maxsize=1)
def fold_table() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return a table, [0x2100], with the plain letter and the flags of each code point."""
    table = np.zeros(0x2100, dtype=np.uint32)
    for point in range(0x2100):
        one = chr(point)
        if one.isascii():
            table[point] = ord(one.lower()) if one.isalpha() else 0
        elif one.isalpha():
            base = _base(point)
            lower = one.lower() if len(one.lower()) == 1 else one
            table[point] = base | LEET if base else ord(lower)
    for sign, letter in _SIGNS.items():
        table[ord(sign)] = ord(letter) | LEET | SIGN
    for sign in _I_OR_L:
        table[ord(sign)] = ord("i") | LEET | BOTH | SIGN | (0 if sign.isdigit() else MARK)
    for pair in _LOOKALIKES:
        table[ord(pair[0])] = ord(pair[1].lower()) | LEET | SIGN
    for point in range(0x300, 0x370):  # accents that stand by themselves
        table[point] = INVISIBLE | LEET
    for point in _INVISIBLES:
        table[point] = INVISIBLE | LEET
    return table


# Candidates for personal data: one pass over the bytes that stops only where a rule may match.
#
# The pass walks over runs of letters, digits, `_` and `-`; only runs with digits, long runs, `@` and `:` are examined,
# each over a bounded number of bytes, so the time is linear in any text. The candidates are a superset of the matches
# of the `pii` annotator, whose rules decide. Numbers without a form of their own are reported only near words that give
# their meaning (`MEANINGS`).
#
# Does not belong here: check digits, registries of addresses, replacements.

def places(texts: pa.Array) -> PiiPlaces:
    """Return all candidates for personal data in a column of texts."""
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
    """Fill `found`, [P, 5], with candidates, up to its size. Return the number of candidates, which may be larger."""


#: Kinds of candidates: an `@`, dotted numbers, hexadecimal groups, a number, letters and a number, a long run, a PEM
#: line.
AT, DOTTED, HEXES, NUMBER, LETTERED, RUN, PEM = range(7)


@dataclass(frozen=True)
class PiiPlaces:
    """Candidates for personal data, in the order of the texts, [P].

    Args:
        doc: row of the text.
        kind: kind of candidate, from `AT` to `PEM`.
        start, end: bytes from the beginning of the text; a rule may read beyond `end`.
        meaning: bits for the meanings of nearby words.
    """

    doc: I64
    kind: I64
    start: I64
    end: I64
    meaning: I64


# Words that give the meaning of a number next to them, in the languages of the rules, as hashes with a bit per meaning.
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
    """Return the 64-bit FNV-1a hash of a word's bytes, with ASCII capitals in lower case."""
    value = _OFFSET
    for byte in word.encode():
        byte = byte + 32 if 65 <= byte <= 90 else byte
        value = ((value ^ byte) * _PRIME) % 2**64
    return value


@lru_cache(maxsize=1)
def table() -> tuple[U64, I64]:
    """Return an open-addressing table of word hashes (0 for an empty slot), and the meanings of the words."""
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
