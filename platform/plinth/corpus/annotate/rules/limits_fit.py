"""Limits and stop words of a language, fitted from text that is trusted as good, as FineWeb-2 fits its own.

A limit is set where it takes a given share of the reference: that quantile of its documents (what Penedo et al. 2025
call the tail method). Stop words are the words that make up at least a given share of all words, and at least eight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.corpus.annotate.rules.gopher_quality import ratio
from plinth.corpus.annotate.rules.language_limits import LanguageLimits
from plinth.errors import StageError
from plinth_text.rules import any_language, fineweb
from plinth_text.rules.any_language import GRAMS, MAX_STOP_WORDS, language_counts, stop_words
from plinth_text.unicode.codepoints import utf8
from plinth_text.words.script_words import words

F64 = npt.NDArray[np.float64]

#: Share of the reference that a limit may take, and share of all words from which one is a stop word.
REMOVED, FREQUENT = 0.05, 0.008
#: Fewest stop words, and fewest documents of a reference.
FEWEST, DOCUMENTS = 8, 100
_DIGITS = 3
#: No limit is below this: a reference without a repeated line forbids none.
_LEAST = 0.01


def fit(label: str, texts: Sequence[str], removed: float = REMOVED, frequent: float = FREQUENT) -> LanguageLimits:
    """The limits of a language.

    Args:
        label: as `language.label` has it.
        texts: documents of the reference in that language.
        removed: share of them beyond each limit.
        frequent: share of all words from which a word is a stop word.

    Raises:
        StageError: there are fewer than a hundred documents.
    """
    if len(texts) < DOCUMENTS:
        raise StageError(
            f"too little text in {label} to fit limits from",
            found=f"{len(texts)} documents",
            expected=f"at least {DOCUMENTS}",
            remedy="name a larger reference bucket, or keep the published limits",
        )
    array = pa.array(texts, pa.large_string())
    n = language_counts(array, np.full(len(texts), -1, dtype=np.int64), stop_words([]))
    lines = fineweb.fineweb_counts(*utf8(array), 0)
    counts, characters = n[:, any_language.WORDS], np.maximum(1, n[:, any_language.CHARACTERS])
    grams = n[:, GRAMS:] / characters[:, None]
    mean = ratio(n[:, any_language.PLAIN_CHARACTERS], n[:, any_language.PLAIN_WORDS])

    def most(values: F64) -> float:
        return max(_LEAST, round(float(np.quantile(values, 1 - removed)), _DIGITS))

    def least(values: F64) -> float:
        return round(float(np.quantile(values, removed)), _DIGITS)

    tops, repeats = [most(one) for one in grams.T[:3]], [most(one) for one in grams.T[3:]]
    return LanguageLimits(
        label=label,
        duplicate_lines=most(ratio(n[:, any_language.REPEATED_LINES], n[:, any_language.LINES])),
        top_n_grams=(tops[0], tops[1], tops[2]),
        duplicate_n_grams=(repeats[0], repeats[1], repeats[2], repeats[3], repeats[4], repeats[5]),
        ended_lines=least(ratio(lines[:, fineweb.ENDED], lines[:, fineweb.FULL_LINES])),
        newlines_per_word=most(ratio(lines[:, fineweb.NEWLINES], counts)),
        letter_words=least(ratio(n[:, any_language.LETTER_WORDS], counts)),
        min_word_characters=least(mean),
        max_word_characters=most(mean),
        stop_words=_frequent(texts, frequent),
    )


def _frequent(texts: Sequence[str], share: float) -> tuple[str, ...]:
    """The most frequent words with a letter, by frequency and then by code points."""
    counts = Counter(word for text in texts for word in words(text) if any(map(str.isalpha, word)))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    enough = sum(counts[word] >= share * counts.total() for word in ranked)
    return tuple(ranked[: min(MAX_STOP_WORDS, max(FEWEST, enough))])
