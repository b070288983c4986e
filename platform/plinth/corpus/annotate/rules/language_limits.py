"""Limits and stop words by language: FineWeb-2's as published, those of a list of yours, and those fitted from trusted
text, as FineWeb-2 fits its own.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, ValidationError

from plinth.compute.context import Context
from plinth.corpus.annotate.rules.gopher import ratio
from plinth.corpus.sidecars import slots
from plinth.errors import MissingError, SourceError, StageError
from plinth.records import Frozen
from plinth.storage.parts import iter_aligned
from plinth_text.arrays import F64
from plinth_text.rules import fineweb
from plinth_text.rules.fineweb import LANGUAGE_GRAMS, MAX_STOP_WORDS, language_counts, stop_words
from plinth_text.unicode import utf8
from plinth_text.words.script_words import words

# Limits and stop words by language: FineWeb-2's as published, and those that a list of yours has.
#
# `language_limits.jsonl` has the values of Penedo et al. 2025 for the languages that lid.176 knows, a line each
# (written by tests/agreement/language_limits.py from github.com/huggingface/fineweb-2, Apache License 2.0). A language
# without a line has the median of each limit, and no stop words.

FILE = Path(__file__).with_name("language_limits.jsonl")
#: Label of the line for all languages without one.
OTHER = "other"
#: Has rules of its own, made for it, so none of these.
ENGLISH = ("en", "eng_Latn")
#: Codes of other models for languages that FineWeb-2 names more closely.
_CODES = {
    "zho": "cmn", "ara": "arb", "msa": "zsm", "est": "ekk", "lav": "lvs", "uzb": "uzn", "aze": "azj", "mon": "khk",
    "pes": "fas", "tgl": "fil", "swa": "swh", "nep": "npi", "ori": "ory", "nor": "nob", "yid": "ydd", "pus": "pbt",
    "mlg": "plt", "kur": "kmr",
}  # fmt: skip
#: Scripts that FineWeb-2 names as one.
_SCRIPTS = {"Hans": "Hani", "Hant": "Hani", "Kore": "Hang"}


class LanguageLimits(Frozen):
    """What a document of a language may be; shares of characters, lines or words."""

    label: str = Field(description="Language as `language.label` has it.")
    name: str = Field("", description="Language and script in FineWeb-2: ISO 639-3 and ISO 15924.")
    duplicate_lines: float = Field(gt=0, description="Most lines that came before.")
    top_n_grams: tuple[float, float, float] = Field(description="Most characters in the top n-gram of 2 to 4 words.")
    duplicate_n_grams: tuple[float, float, float, float, float, float] = Field(
        description="Most characters in repeated n-grams of 5 to 10 words."
    )
    ended_lines: float = Field(description="Fewest lines that end a sentence.")
    newlines_per_word: float = Field(gt=0, description="Most line ends per word.")
    letter_words: float = Field(description="Fewest words with a letter.")
    min_word_characters: float = Field(description="Shortest mean word.")
    max_word_characters: float = Field(gt=0, description="Longest mean word.")
    stop_words: tuple[str, ...] = Field((), max_length=MAX_STOP_WORDS, description="Frequent words of the language.")


def read(lines: Iterable[str], where: str) -> dict[str, LanguageLimits]:
    """A line of JSON for each language, by label.

    Raises:
        SourceError: a line cannot be read.
    """
    found: dict[str, LanguageLimits] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            one = LanguageLimits.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            raise SourceError(
                f"{where}: line {number} states no limits of a language",
                found=f"{'.'.join(map(str, first['loc']))}: {first['msg']}",
                expected="a JSON object with the fields of docs/languages-and-pii.md",
                remedy="write it with `plinth corpus limits --bucket BUCKET --out FILE`",
            ) from error
        found[one.label] = one
    return found


@lru_cache(maxsize=1)
def published() -> Mapping[str, LanguageLimits]:
    """FineWeb-2's, with the medians for other languages; also by their names in FineWeb-2 and ISO 639-3 codes."""
    own = read(FILE.read_text("utf-8").splitlines(), FILE.name)
    named = {one.name: one for one in reversed(own.values())}
    codes = {one.name.partition("_")[0]: one for one in reversed(own.values())}
    return {OTHER: _median(list(own.values())), **codes, **named, **own}


def _median(rows: list[LanguageLimits]) -> LanguageLimits:
    plain = {
        key: statistics.median(getattr(row, key) for row in rows)
        for key in ("duplicate_lines", "ended_lines", "newlines_per_word", "letter_words")
    }
    several = {
        key: tuple(statistics.median(values) for values in zip(*(getattr(row, key) for row in rows), strict=True))
        for key in ("top_n_grams", "duplicate_n_grams")
    }
    return LanguageLimits(label=OTHER, min_word_characters=1, max_word_characters=25, **plain, **several)


def limits_of(label: str, own: Mapping[str, LanguageLimits]) -> LanguageLimits | None:
    """The limits of a language; None for English. Labels are those of lid.176, GlotLID and OpenLID (`zho_Hans`).

    A language in another script than the one whose limits there are has those of an unknown language: stop words of
    another script would take all of it.

    Args:
        own: those of a list, which come first.
    """
    if label in own:
        return own[label]
    if label in ENGLISH:
        return None
    have, (code, _, script) = published(), label.partition("_")
    found = have.get(label) or have.get(_CODES.get(code, code))
    if found is None or (script and found.name.partition("_")[2] != _SCRIPTS.get(script, script)):
        return own.get(OTHER) or have[OTHER]
    return found


# Limits and stop words of a language, fitted from text that is trusted as good, as FineWeb-2 fits its own.
#
# A limit is set where it takes a given share of the reference: that quantile of its documents (what Penedo et al. 2025
# call the tail method). Stop words are the words that make up at least a given share of all words, and at least eight.


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
    counts, characters = n[:, fineweb.LANGUAGE_WORDS], np.maximum(1, n[:, fineweb.LANGUAGE_CHARACTERS])
    grams = n[:, LANGUAGE_GRAMS:] / characters[:, None]
    mean = ratio(n[:, fineweb.LANGUAGE_PLAIN_CHARACTERS], n[:, fineweb.LANGUAGE_PLAIN_WORDS])

    def most(values: F64) -> float:
        return max(_LEAST, round(float(np.quantile(values, 1 - removed)), _DIGITS))

    def least(values: F64) -> float:
        return round(float(np.quantile(values, removed)), _DIGITS)

    tops, repeats = [most(one) for one in grams.T[:3]], [most(one) for one in grams.T[3:]]
    return LanguageLimits(
        label=label,
        duplicate_lines=most(ratio(n[:, fineweb.LANGUAGE_REPEATED_LINES], n[:, fineweb.LANGUAGE_LINES])),
        top_n_grams=(tops[0], tops[1], tops[2]),
        duplicate_n_grams=(repeats[0], repeats[1], repeats[2], repeats[3], repeats[4], repeats[5]),
        ended_lines=least(ratio(lines[:, fineweb.ENDED], lines[:, fineweb.FULL_LINES])),
        newlines_per_word=most(ratio(lines[:, fineweb.NEWLINES], counts)),
        letter_words=least(ratio(n[:, fineweb.LANGUAGE_LETTER_WORDS], counts)),
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


def fitted(ctx: Context, bucket: str, languages: Sequence[str], removed: float, documents: int) -> list[LanguageLimits]:
    """Limits of the languages asked for; of none, of all that have enough documents, by label.

    Args:
        removed: share of the reference beyond each limit.
        documents: the first so many of a language, in the order of the bucket.

    Raises:
        MissingError: the bucket has no documents, no languages, or none with enough text.
        StageError: a language asked for has too few documents.
    """
    made = {"documents": ctx.refs.current(f"{bucket}/documents"), "language": ctx.refs.current(f"{bucket}/language")}
    texts: dict[str, list[str]] = {}
    for slot in slots({bucket: made["documents"]}, language={bucket: made["language"]}):
        sources = ((slot.documents, ["text"]), (slot.sides["language"], ["label", "accepted"]))
        for batch, sidecar in iter_aligned(ctx.store, *sources):
            sure = sidecar.column("accepted")
            rows = zip(pc.filter(batch.column("text"), sure), pc.filter(sidecar.column("label"), sure), strict=True)
            for text, label in rows:
                held = texts.setdefault(label.as_py(), [])
                if len(held) < documents and (not languages or label.as_py() in languages):
                    held.append(text.as_py())
    chosen = languages or sorted(label for label, held in texts.items() if len(held) >= DOCUMENTS)
    wanted = [label for label in chosen if languages or label not in ENGLISH]
    if not wanted:
        raise MissingError(
            f"{bucket} has no language with enough documents",
            found=", ".join(f"{label} {len(held)}" for label, held in sorted(texts.items())) or "no documents",
            expected=f"at least {DOCUMENTS} documents of a language other than English",
            remedy="name a larger reference bucket",
        )
    return [fit(label, texts.get(label, []), removed) for label in wanted]
