"""Limits and stop words by language: FineWeb-2's as published, and those that a list of yours has.

`language_limits.jsonl` has the values of Penedo et al. 2025 for the languages that lid.176 knows, a line each (written
by tests/agreement/language_limits.py from github.com/huggingface/fineweb-2, Apache License 2.0). A language without a
line has the median of each limit, and no stop words.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from pydantic import Field, ValidationError

from plinth.errors import SourceError
from plinth.records import Frozen
from plinth_text.rules.any_language import MAX_STOP_WORDS

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
