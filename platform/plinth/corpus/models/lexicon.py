"""A lexicon: terms with weights and categories, as a list of the user (`corpus.lists`).

One term a line, three fields separated by tabs; empty lines and lines that begin with `#` do not count:

    term or phrase <TAB> weight <TAB> category

The weight lies above 0 and at most at 1. Whoever can write the file can stop documents, so a file that is damaged or
too greedy is refused whole: control characters, a term given twice with different values, a term that is a common
English word, a term without letters.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from plinth.errors import PlinthError, SourceError
from plinth_text.arrays import F32, F64, I64
from plinth_text.scoring.features import COMMON_WORDS
from plinth_text.terms.lexicon import MAX_WORDS, TermHits, TermTable

#: Bounds of a file.
MAX_TERMS, MAX_CHARACTERS = 1_000_000, 120
CATEGORY = re.compile(r"[a-z][a-z0-9_]{0,39}")
EXPECTED = "term <TAB> weight above 0, at most 1 <TAB> category of small letters, digits and _"

#: Names of the features of hits for the second stage of a classifier.
FEATURES = ("lexicon_hits", "lexicon_density", "lexicon_weight", "lexicon_disguised", "lexicon_terms")


@dataclass(frozen=True)
class Lexicon:
    """Terms ready to be sought, with a weight and a category each."""

    terms: TermTable
    weights: F64
    categories: tuple[str, ...]

    def find(self, texts: pa.Array, obfuscated: bool = True) -> TermHits:
        """Hits of terms in texts."""
        return self.terms.find(texts, obfuscated)

    def features(self, hits: TermHits, words: I64) -> F32:
        """Of every text, [documents, 5]: log of the number of hits, summed weight per 100 words, largest weight,
        share of hits in disguise, log of the number of different terms."""
        out = np.zeros((hits.starts.size - 1, len(FEATURES)), np.float32)
        for doc in np.flatnonzero(np.diff(hits.starts)):
            own = slice(hits.starts[doc], hits.starts[doc + 1])
            weights = self.weights[hits.terms[own]]
            out[doc] = (
                math.log1p(weights.size),
                100 * weights.sum() / max(int(words[doc]), 1),
                weights.max(),
                hits.obfuscated[own].mean(),
                math.log1p(np.unique(hits.terms[own]).size),
            )
        return out


def read(files: Mapping[str, Path], key: str) -> Lexicon:
    """The lexicon in the files of a list.

    Args:
        key: of the asset, for errors: `lists/NAME`.

    Raises:
        SourceError: names file and line and the fault; nothing of the list is used.
    """
    entries: dict[str, tuple[float, str]] = {}
    for name in sorted(files):
        for number, line in _lines(files[name].read_bytes(), key, name):
            where = f"{key}, {name} line {number}"
            term, value = _entry(line, where)
            if entries.setdefault(term, value) != value:
                raise _refused(where, f"{term!r} again, with other values", "every term once")
            if len(entries) > MAX_TERMS:
                raise _refused(where, f"more than {MAX_TERMS} terms", "fewer")
    if not entries:
        raise _refused(key, "no terms", EXPECTED)
    weights, categories = zip(*entries.values(), strict=True)
    return Lexicon(TermTable(tuple(entries)), np.array(weights), categories)


def _lines(data: bytes, key: str, name: str) -> Iterator[tuple[int, str]]:
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            line = raw.decode("utf-8").rstrip("\r")
        except UnicodeDecodeError as error:
            raise _refused(f"{key}, {name} line {number}", error, "UTF-8") from error
        if line.strip() and not line.startswith("#"):
            yield number, line


def _entry(line: str, where: str) -> tuple[str, tuple[float, str]]:
    fields = line.split("\t")
    if len(fields) != 3:
        raise _refused(where, f"{len(fields)} fields", EXPECTED)
    term, weight, category = (unicodedata.normalize("NFC", field.strip()) for field in fields)
    term = " ".join(term.lower().split())
    if any(unicodedata.category(one) in ("Cc", "Cf", "Co", "Cn") for one in term):
        raise _refused(where, f"{term!r} has control or invisible characters", "letters, digits, spaces, punctuation")
    if len(term) > MAX_CHARACTERS:
        raise _refused(where, f"a term of {len(term)} characters", f"at most {MAX_CHARACTERS}")
    if term in COMMON_WORDS or len(term) < 2 or not any(one.isalpha() for one in term):
        found = f"{term!r}, which good text is full of"
        raise _refused(where, found, "a term of two characters or more, with a letter, that is no common word")
    try:
        value = float(weight)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1 or not CATEGORY.fullmatch(category):
        raise _refused(where, f"weight {weight!r}, category {category!r}", EXPECTED)
    try:
        TermTable([term])
    except ValueError as error:
        raise _refused(where, error, f"1 to {MAX_WORDS} words") from error
    return term, (value, category)


def _refused(where: str, found: object, expected: str) -> PlinthError:
    remedy = "correct the list; no part of it is used"
    return SourceError(f"{where} is refused", found=found, expected=expected, remedy=remedy)
