"""Illegal content: lists of hashes, keywords and domains. Records are matched against the lists before anything is
written.

The beginning of a file's name selects the kind of list; each line has one entry (`lists`):

    sha256…     64 hexadecimal digits: of the unchanged record, of its normalized text, or of a media item
    simhash…    16 hexadecimal digits: SimHash of a text's word shingles (`plinth corpus quarantine hash` prints it)
    phash…      16 hexadecimal digits: perceptual hash of an image, of the kind that the records declare
    keywords…   a term or phrase of at most 8 words, tab, a category of small letters, digits and _
    domains…    a host name; all its subdomains match as well

A file with an invalid line is an error, because an incomplete list would miss content. The annotator `illegal` matches
documents that are already stored.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from plinth.corpus.lists import by_role, numbered_lines, refused
from plinth.corpus.sources.parameters import Matching
from plinth.text import domain, domains, host
from plinth_text.arrays import I64, U64
from plinth_text.scoring import COMMON_WORDS
from plinth_text.similarity import SimHashIndex, simhashes
from plinth_text.terms import MAX_WORDS, TermTable
from plinth_text.unicode import utf8

E = TypeVar("E")

ROLES = ("sha256", "simhash", "phash", "keywords", "domains")
DIGITS = {"sha256": 64, "simhash": 16, "phash": 16}
CATEGORY = re.compile(r"[a-z][a-z0-9_]{0,39}")
MAX_CHARACTERS = 120
#: Values of 64 bits that libraries return for a blank image or an empty text.
DEGENERATE = {0, 2**64 - 1}
EXPECTED_KEYWORD = "term <TAB> category of small letters, digits and _"


@dataclass(frozen=True)
class ListEntry:
    """Reference to a list entry without the entry's content: file, line, SHA-256 of the entry, category."""

    file: str
    line: int
    sha256: str
    category: str | None = None


class ListedDigests:
    """Listed SHA-256 digests as sorted rows [N, 32], with the file and line of each digest."""

    def __init__(self, found: Sequence[tuple[bytes, int, int]]) -> None:
        ordered = sorted(set(found))
        self._data = b"".join(digest for digest, _, _ in ordered)
        rows = np.frombuffer(self._data, dtype=">u8").reshape(-1, 4)
        self._heads = rows[:, 0].astype(np.uint64)
        self.places = np.array([(file, line) for _, file, line in ordered], dtype=np.int64).reshape(-1, 2)

    def __getitem__(self, at: int) -> bytes:
        return self._data[32 * at : 32 * at + 32]

    def find(self, sought: Sequence[bytes]) -> list[int]:
        """Return the position of each sought digest, or -1 if the digest is not listed."""
        heads = np.frombuffer(b"".join(sought), dtype=">u8").reshape(-1, 4)[:, 0].astype(np.uint64)
        firsts = np.searchsorted(self._heads, heads).tolist()
        lasts = np.searchsorted(self._heads, heads, side="right").tolist()
        return [
            next((at for at in range(first, last) if self[at] == digest), -1)
            for digest, first, last in zip(sought, firsts, lasts, strict=True)
        ]


@dataclass(frozen=True)
class Hashes:
    """Listed 64-bit hashes, prepared for search, with the file and line of each hash, [N, 2]."""

    near: SimHashIndex
    places: I64


@dataclass(frozen=True)
class Lists:
    """All lists of illegal content, prepared for lookup. A list without entries is None or empty."""

    names: tuple[str, ...]
    sha256: ListedDigests | None
    simhash: Hashes | None
    phash: Hashes | None
    terms: TermTable | None
    keywords: tuple[ListEntry, ...]
    domains: Mapping[str, ListEntry]

    def digest_entry(self, at: int) -> ListEntry:
        """Return the entry of the SHA-256 digest at position `at`."""
        assert self.sha256 is not None
        return self._entry(self.sha256.places[at], self.sha256[at].hex())

    def hash_entry(self, hashes: Hashes, at: int) -> ListEntry:
        """Return the entry of the 64-bit hash at position `at`."""
        return self._entry(hashes.places[at], f"{int(hashes.near.hashes[at]):016x}")

    def _entry(self, place: I64, text: str) -> ListEntry:
        return ListEntry(self.names[int(place[0])], int(place[1]), _sha256(text))


def read(files: Mapping[str, Path], key: str, params: Matching) -> Lists:
    """Read the lists of illegal content from the files of an asset.

    Args:
        key: name of the asset (`lists/NAME`), for error messages.

    Raises:
        SourceError: a file is not a list, has a malformed line (the error names the line), or all files are empty.
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
        raise refused(key, 0, "no entry", "at least one entry")
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
    """Parse one line of a list of keywords. Return the normalized term and its category.

    Raises:
        ValueError: the line is malformed; the message states the expected format.
    """
    raw, tab, category = line.partition("\t")
    category = category.strip()
    term = " ".join(unicodedata.normalize("NFC", raw).lower().split())
    if not tab or not CATEGORY.fullmatch(category):
        raise ValueError(EXPECTED_KEYWORD)
    if any(unicodedata.category(one) in ("Cc", "Cf", "Co", "Cn") for one in term):
        raise ValueError("a term without control or invisible characters")
    if len(term) < 2 or len(term) > MAX_CHARACTERS or term in COMMON_WORDS or not any(one.isalpha() for one in term):
        raise ValueError(f"a term of 2 to {MAX_CHARACTERS} characters that has a letter and is not a common word")
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
                raise refused(
                    name, number, f"a duplicate term, of category {category}", f"category {have.category}, as before"
                )
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
            raise ValueError(f"exactly {count} hexadecimal digits")
        value = bytes.fromhex(line)
        if count == 16 and int.from_bytes(value, "big") in DEGENERATE:
            raise ValueError("a hash of content, but this is the hash of a blank image or an empty text")
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


# Records against the lists: hits, with list, rule and distance. Texts go in, no text comes out.

#: Kinds of hits, in the order in which a record's hits are reported.
KINDS = ("sha256_record", "sha256_text", "sha256_media", "simhash", "phash", "keyword", "domain")


@dataclass(frozen=True, slots=True)
class ListHit:
    """List entry that matches a record. For near hashes, `distance` is the number of differing bits."""

    kind: str
    entry: ListEntry
    distance: int | None = None

    @property
    def rule(self) -> str:
        """Description of the rule that matched. The description contains no content of the record."""
        near = f" at distance {self.distance}" if self.distance is not None else ""
        return f"{self.kind}{near}" + (f" of category {self.entry.category}" if self.entry.category else "")


class Matcher:
    """Matcher of records against the lists of illegal content, with the recipe's limits for a match."""

    def __init__(self, lists: Lists, params: Matching) -> None:
        self.lists, self.params = lists, params

    def records(self, digests: Sequence[bytes], kind: str = "sha256_record") -> list[ListHit | None]:
        """Return the matching entry of each SHA-256 digest, or None if the digest is not listed."""
        if self.lists.sha256 is None or not digests:
            return [None] * len(digests)
        return [
            ListHit(kind, self.lists.digest_entry(at)) if at >= 0 else None for at in self.lists.sha256.find(digests)
        ]

    def texts(self, texts: pa.Array, uris: Sequence[str], media: Sequence[Any]) -> list[tuple[ListHit, ...]]:
        """Return, for each normalized text, the entries that match the text, its address and its declared media.
        Entries are in the order of `KINDS`.

        Args:
            media: `media` of each record's `extra`.
        """
        found: list[list[ListHit]] = [[] for _ in range(len(texts))]
        if self.lists.sha256 is not None:
            for row, hit in enumerate(self.records(_digests(texts), "sha256_text")):
                found[row] += [hit] if hit is not None else []
        for row, declared in enumerate(media):
            if declared:
                found[row].extend(self._media(declared, "sha256", self._media_digest))
        self._simhashes(texts, found)
        for row, declared in enumerate(media):
            if declared:
                found[row].extend(self._media(declared, "phash", self._media_hash))
        self._keywords(texts, found)
        if self.lists.domains:
            for row, uri in enumerate(uris):
                name = next((one for one in domains(host(uri, bare=True)) if one in self.lists.domains), None)
                if name is not None:
                    found[row].append(ListHit("domain", self.lists.domains[name]))
        return [tuple(dict.fromkeys(hits)) for hits in found]

    def _simhashes(self, texts: pa.Array, found: list[list[ListHit]]) -> None:
        if self.lists.simhash is None:
            return
        hashes, filled = simhashes(texts, self.params.shingle_words)
        places, bits = self.lists.simhash.near.nearest(hashes)
        for row in np.flatnonzero((places >= 0) & filled).tolist():
            entry = self.lists.hash_entry(self.lists.simhash, int(places[row]))
            found[row].append(ListHit("simhash", entry, int(bits[row])))

    def _keywords(self, texts: pa.Array, found: list[list[ListHit]]) -> None:
        if self.lists.terms is None:
            return
        hits = self.lists.terms.find(texts, self.params.disguised)
        for row in np.flatnonzero(np.diff(hits.starts)).tolist():
            different = np.unique(hits.terms[hits.starts[row] : hits.starts[row + 1]])
            if different.size >= self.params.min_keywords:
                found[row].extend(ListHit("keyword", self.lists.keywords[int(term)]) for term in different)

    def _media(self, declared: Any, name: str, find: Any) -> Iterator[ListHit]:
        for item in declared if isinstance(declared, list) else ():
            value = item.get(name) if isinstance(item, Mapping) else None
            hit = find(value) if isinstance(value, str) else None
            if hit is not None:
                yield hit

    def _media_digest(self, value: str) -> ListHit | None:
        return self.records([bytes.fromhex(value)], "sha256_media")[0]

    def _media_hash(self, value: str) -> ListHit | None:
        hashes: Hashes | None = self.lists.phash
        if hashes is None:
            return None
        places, bits = hashes.near.nearest(np.array([int(value, 16)], dtype=np.uint64))
        if places[0] < 0:
            return None
        return ListHit("phash", self.lists.hash_entry(hashes, int(places[0])), int(bits[0]))


def media_of(extras: Sequence[str]) -> list[Any]:
    """Return the media that stored documents declare under `media` of their `extra`."""
    return [json.loads(extra).get("media") if '"media"' in extra else None for extra in extras]


def _digests(texts: pa.Array) -> list[bytes]:
    """Return the SHA-256 digest of every text in UTF-8, without decoding the texts."""
    data, offsets = utf8(texts)
    view, ends = data.data, offsets.tolist()
    return [hashlib.sha256(view[start:end]).digest() for start, end in pairwise(ends)]
