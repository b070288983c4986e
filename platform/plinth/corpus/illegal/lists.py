"""Lists of illegal content, as users and authorities keep them: read, refused, made ready.

Files of one list of the recipe, distinguished by the beginning of their names; one entry a line (`lists.listfiles`):

    sha256…     64 hexadecimal digits: of a record as it came, of its normalised text, or of a media item
    simhash…    16 hexadecimal digits: SimHash of a text's word shingles (`plinth corpus quarantine hash` prints it)
    phash…      16 hexadecimal digits: perceptual hash of an image, of whatever kind the records declare
    keywords…   a term or phrase of at most 8 words, tab, a category of small letters, digits and _
    domains…    a host name; it stands for every host below it

Nothing is read leniently: a list that is half understood would let through what it was given to stop.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from plinth.corpus.lists import by_role, numbered_lines, refused
from plinth.corpus.sources.parameters import Matching
from plinth.text import domain
from plinth_text.arrays import I64, U64
from plinth_text.scoring import COMMON_WORDS
from plinth_text.similarity import SimHashIndex
from plinth_text.terms import MAX_WORDS, TermTable

E = TypeVar("E")

ROLES = ("sha256", "simhash", "phash", "keywords", "domains")
DIGITS = {"sha256": 64, "simhash": 16, "phash": 16}
CATEGORY = re.compile(r"[a-z][a-z0-9_]{0,39}")
MAX_CHARACTERS = 120
#: Hashes of 64 bits that are no hash: what libraries give for a blank image or an empty text.
DEGENERATE = {0, 2**64 - 1}
EXPECTED_KEYWORD = "term <TAB> category of small letters, digits and _"


@dataclass(frozen=True)
class ListEntry:
    """The place of an entry without its content: file, line, SHA-256 of the entry, category."""

    file: str
    line: int
    sha256: str
    category: str | None = None


class ListedDigests:
    """Listed SHA-256 digests, sorted: [N, 32], with the file and line of each."""

    def __init__(self, found: Sequence[tuple[bytes, int, int]]) -> None:
        ordered = sorted(set(found))
        self._data = b"".join(digest for digest, _, _ in ordered)
        rows = np.frombuffer(self._data, dtype=">u8").reshape(-1, 4)
        self._heads = rows[:, 0].astype(np.uint64)
        self.places = np.array([(file, line) for _, file, line in ordered], dtype=np.int64).reshape(-1, 2)

    def __getitem__(self, at: int) -> bytes:
        return self._data[32 * at : 32 * at + 32]

    def find(self, sought: Sequence[bytes]) -> list[int]:
        """Positions of digests, -1 where one is not listed."""
        heads = np.frombuffer(b"".join(sought), dtype=">u8").reshape(-1, 4)[:, 0].astype(np.uint64)
        firsts = np.searchsorted(self._heads, heads).tolist()
        lasts = np.searchsorted(self._heads, heads, side="right").tolist()
        return [
            next((at for at in range(first, last) if self[at] == digest), -1)
            for digest, first, last in zip(sought, firsts, lasts, strict=True)
        ]


@dataclass(frozen=True)
class Hashes:
    """Listed hashes of 64 bits, ready to be searched, with the file and line of each, [N, 2]."""

    near: SimHashIndex
    places: I64


@dataclass(frozen=True)
class Lists:
    """All lists, ready for look-up. `None` and empty: no such list."""

    names: tuple[str, ...]
    sha256: ListedDigests | None
    simhash: Hashes | None
    phash: Hashes | None
    terms: TermTable | None
    keywords: tuple[ListEntry, ...]
    domains: Mapping[str, ListEntry]

    def digest_entry(self, at: int) -> ListEntry:
        """Of a listed SHA-256."""
        assert self.sha256 is not None
        return self._entry(self.sha256.places[at], self.sha256[at].hex())

    def hash_entry(self, hashes: Hashes, at: int) -> ListEntry:
        """Of a listed hash of 64 bits."""
        return self._entry(hashes.places[at], f"{int(hashes.near.hashes[at]):016x}")

    def _entry(self, place: I64, text: str) -> ListEntry:
        return ListEntry(self.names[int(place[0])], int(place[1]), _sha256(text))


def read(files: Mapping[str, Path], key: str, params: Matching) -> Lists:
    """The lists in the files of an asset.

    Args:
        key: of the asset, for errors: `lists/NAME`.

    Raises:
        SourceError: a file that is no list, a line of the wrong form (names file and line), or no entry at all.
    """
    names = tuple(sorted(files))
    numbers = {name: number for number, name in enumerate(names)}
    found = by_role(files, ROLES)
    rows = {role: _parsed(found[role], numbers, _digits(digits)) for role, digits in DIGITS.items()}
    keywords = _keywords(found["keywords"])
    domains: dict[str, ListEntry] = {}
    for name, path in found["domains"]:
        for number, line in numbered_lines(name, path):
            known = _tried(name, number, line, domain)
            domains.setdefault(known, ListEntry(name, number, _sha256(known)))
    if not any(rows.values()) and not keywords and not domains:
        raise refused(key, 0, "no entry", "at least one: an empty list would stop nothing, silently")
    return Lists(
        names,
        ListedDigests(rows["sha256"]) if rows["sha256"] else None,
        _hashes(rows["simhash"], params.simhash_distance),
        _hashes(rows["phash"], params.phash_distance),
        TermTable(tuple(keywords)) if keywords else None,
        tuple(keywords.values()),
        domains,
    )


def keyword(line: str) -> tuple[str, str]:
    """A line of a list of keywords: the term, folded, and its category.

    Raises:
        ValueError: a line of the wrong form; names the expected one.
    """
    raw, tab, category = line.partition("\t")
    category = category.strip()
    term = " ".join(unicodedata.normalize("NFC", raw).lower().split())
    if not tab or not CATEGORY.fullmatch(category):
        raise ValueError(EXPECTED_KEYWORD)
    if any(unicodedata.category(one) in ("Cc", "Cf", "Co", "Cn") for one in term):
        raise ValueError("a term without control or invisible characters")
    if len(term) < 2 or len(term) > MAX_CHARACTERS or term in COMMON_WORDS or not any(one.isalpha() for one in term):
        raise ValueError(f"a term of 2 to {MAX_CHARACTERS} characters, with a letter, that is no common word")
    try:
        TermTable([term])
    except ValueError as error:
        raise ValueError(f"a term of 1 to {MAX_WORDS} words") from error
    return term, category


def _keywords(files: Sequence[tuple[str, Path]]) -> dict[str, ListEntry]:
    found: dict[str, ListEntry] = {}
    for name, path in files:
        for number, line in numbered_lines(name, path):
            term, category = _tried(name, number, line, keyword)
            have = found.setdefault(term, ListEntry(name, number, _sha256(term), category))
            if have.category != category:
                raise refused(name, number, f"a term again, of category {category}", f"{have.category} as before")
    return found


def _parsed(
    files: Sequence[tuple[str, Path]], numbers: Mapping[str, int], parse: Callable[[str], bytes]
) -> list[tuple[bytes, int, int]]:
    return [
        (_tried(name, number, line, parse), numbers[name], number)
        for name, path in files
        for number, line in numbered_lines(name, path)
    ]


def _tried(name: str, number: int, line: str, parse: Callable[[str], E]) -> E:
    try:
        return parse(line)
    except ValueError as error:
        raise refused(name, number, repr(line[:80]), str(error)) from error


def _digits(count: int) -> Callable[[str], bytes]:
    form = re.compile(rf"[0-9a-fA-F]{{{count}}}")

    def parse(line: str) -> bytes:
        if not form.fullmatch(line):
            raise ValueError(f"{count} hexadecimal digits and nothing else")
        value = bytes.fromhex(line)
        if count == 16 and int.from_bytes(value, "big") in DEGENERATE:
            raise ValueError("a hash of content; this is the hash of a blank image or an empty text")
        return value

    return parse


def _hashes(rows: Sequence[tuple[bytes, int, int]], distance: int) -> Hashes | None:
    if not rows:
        return None
    ordered = sorted(set(rows))
    values: U64 = np.array([int.from_bytes(value, "big") for value, _, _ in ordered], dtype=np.uint64)
    return Hashes(SimHashIndex(values, distance), np.array([row[1:] for row in ordered], dtype=np.int64))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
