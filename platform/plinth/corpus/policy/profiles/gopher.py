"""Gopher's quality and repetition rules (Rae et al. 2021, table A1) in the counting of three projects."""

from __future__ import annotations

from plinth.corpus.policy.profiles.base import Profile

#: Characters in n-grams that repeat: at most this share, by length.
_REPEATED = {5: "0.15", 6: "0.14", 7: "0.13", 8: "0.12", 9: "0.11", 10: "0.10"}
#: Characters in the most frequent n-gram.
_TOP = {2: "0.20", 3: "0.18", 4: "0.16"}


def _grams(column: str, top: tuple[int, ...] = (2, 3, 4)) -> tuple[tuple[str, str], ...]:
    """The rules of n-grams over columns named alike."""
    return (
        *((f"top_{n}_gram", f"{column}.top_{n}_gram > {_TOP[n]}") for n in top),
        *((f"duplicate_{n}_grams", f"{column}.duplicate_{n}_grams > {most}") for n, most in _REPEATED.items()),
    )


def _datatrove(name: str, counting: str, description: str) -> Profile:
    return Profile(
        name=name,
        version="2",
        description=description,
        source="Rae et al. 2021, table A1; datatrove 0.10 gopher_repetition_filter.py, gopher_quality_filter.py.",
        annotators={"gopher_repetition": {"profile": counting}, "gopher_quality": {"profile": counting}},
        rules=(
            ("duplicate_lines", "gopher_repetition.duplicate_lines > 0.30"),
            ("duplicate_paragraphs", "gopher_repetition.duplicate_paragraphs > 0.30"),
            ("duplicate_line_characters", "gopher_repetition.duplicate_line_characters > 0.20"),
            ("duplicate_paragraph_characters", "gopher_repetition.duplicate_paragraph_characters > 0.20"),
            *_grams("gopher_repetition"),
            ("too_few_words", "gopher_quality.word_count < 50"),
            ("too_many_words", "gopher_quality.word_count > 100000"),
            ("word_length", "gopher_quality.mean_word_characters < 3 or gopher_quality.mean_word_characters > 10"),
            ("symbols", "gopher_quality.hash_ratio > 0.1 or gopher_quality.ellipsis_ratio > 0.1"),
            ("bullets", "gopher_quality.bullet_lines > 0.9"),
            ("ellipsis_lines", "gopher_quality.ellipsis_lines > 0.3"),
            ("few_letters", "gopher_quality.letter_words < 0.8"),
            ("few_stop_words", "gopher_quality.stop_words < 2"),
        ),
    )


DATATROVE = _datatrove(
    "gopher/datatrove", "datatrove", "Gopher as datatrove applies it, on spaCy's words: repetition, then quality."
)
WHITE_SPACE = _datatrove(
    "gopher/white-space", "white-space", "datatrove's Gopher on words that white space separates, as in the paper."
)

#: In the order of Dolma's mixer. It allows duplicate lines 0.3 of the characters, not 0.2, and has no paragraphs.
DOLMA = Profile(
    name="gopher/dolma",
    version="1",
    description="Gopher as Dolma counts it: median word length, all copies of a line, stop words each time.",
    source="Soldaini et al. 2024, section 4.1; dolma 1.2 taggers/gopher.py, configs/dolma-v1_6/mixing.",
    annotators={"gopher_dolma": {"join_blank_lines": False}},
    rules=(
        ("too_few_words", "gopher_dolma.word_count < 50"),
        ("too_many_words", "gopher_dolma.word_count > 100000"),
        ("word_length", "gopher_dolma.median_word_characters < 3 or gopher_dolma.median_word_characters > 10"),
        ("symbols", "gopher_dolma.symbol_words > 0.1"),
        ("few_letters", "gopher_dolma.letter_words < 0.8"),
        ("few_stop_words", "gopher_dolma.stop_words < 2"),
        ("bullets", "gopher_dolma.bullet_lines > 0.9"),
        ("ellipsis_lines", "gopher_dolma.ellipsis_lines > 0.3"),
        ("duplicate_lines", "gopher_dolma.duplicate_lines > 0.30"),
        ("duplicate_line_characters", "gopher_dolma.duplicate_line_characters > 0.30"),
        *_grams("gopher_dolma"),
    ),
)

REDPAJAMA = Profile(
    name="gopher/redpajama",
    version="1",
    description="Gopher on RedPajama-v2's signals: at most 10,000 words, a top n-gram that does not repeat is 0.",
    source="RedPajama-Data-V2, dataset card (words to top 2-gram); the other rules: Gopher's values on its signals.",
    annotators={"redpajama": {}},
    rules=(
        ("too_few_words", "redpajama.word_count < 50"),
        ("too_many_words", "redpajama.word_count > 10000"),
        ("word_length", "redpajama.mean_word_characters < 3 or redpajama.mean_word_characters > 10"),
        ("symbols", "redpajama.symbol_ratio > 0.1"),
        ("bullets", "redpajama.bullet_lines > 0.9"),
        *_grams("redpajama"),
        ("ellipsis_lines", "redpajama.ellipsis_lines > 0.3"),
        ("few_letters", "redpajama.no_letter_words > 0.2"),
    ),
)

ALL = (DATATROVE, WHITE_SPACE, DOLMA, REDPAJAMA)
