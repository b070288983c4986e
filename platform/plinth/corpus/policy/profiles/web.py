"""Rules of whole projects: FineWeb's own, RefinedWeb's lines, Dolma 1.6, RedPajama's source code."""

from __future__ import annotations

from plinth.corpus.policy.profiles.base import Profile
from plinth.corpus.policy.profiles.c4 import FINEWEB as C4_FINEWEB
from plinth.corpus.policy.profiles.gopher import DATATROVE as GOPHER
from plinth.corpus.policy.profiles.gopher import DOLMA as GOPHER_DOLMA


def _fineweb(name: str, description: str, counting: str) -> Profile:
    return Profile(
        name=name,
        version="2",
        description=description,
        source="Penedo et al. 2024 (FineWeb), section 3.4; datatrove 0.10 fineweb_quality_filter.py.",
        annotators={"fineweb": {"profile": counting, "after_c4": False, "short_line_characters": 30}},
        rules=(
            ("unended_lines", "fineweb.ended_lines < 0.12"),
            ("short_lines", "fineweb.short_lines > 0.67"),
            ("duplicate_characters", "fineweb.duplicate_characters > 0.01"),
            ("list_like", "fineweb.newlines_per_word > 0.3"),
        ),
    )


FINEWEB = _fineweb(
    "fineweb/datatrove", "FineWeb's own rules alone: line ends, short lines, repeated lines, lists.", "datatrove"
)
FINEWEB_WHITE_SPACE = _fineweb(
    "fineweb/white-space", "FineWeb's own rules on words that white space separates.", "white-space"
)

PIPELINE = Profile(
    name="fineweb/pipeline",
    version="1",
    description="FineWeb's filters of text in its order: Gopher, C4, then its own rules on what C4 leaves.",
    source="Penedo et al. 2024 (FineWeb), section 3; datatrove 0.10 examples/fineweb.py.",
    annotators={
        **GOPHER.annotators,
        **C4_FINEWEB.annotators,
        "fineweb": {**FINEWEB.annotators["fineweb"], "after_c4": True},
    },
    rules=(*GOPHER.rules, *C4_FINEWEB.rules, *FINEWEB.rules),
)

#: FineWeb-2's rules, in its order. The scores of `fineweb2` stand over the limits of a document's language.
_ANY_LANGUAGE = {
    "duplicate_lines": "fineweb2.duplicate_lines > 1",
    "top_n_grams": "fineweb2.top_n_grams > 1",
    "duplicate_n_grams": "fineweb2.duplicate_n_grams > 1",
    "unended_lines": "fineweb2.ended_lines < 1",
    "duplicate_characters": "fineweb2.duplicate_characters > 0.1",
    "list_like": "fineweb2.newlines_per_word > 1",
    "too_few_words": "fineweb2.word_count < 50",
    "too_many_words": "fineweb2.word_count > 100000",
    "word_length": "fineweb2.short_words < 1 or fineweb2.long_words > 1",
    "symbols": "fineweb2.hash_ratio > 0.1 or fineweb2.ellipsis_ratio > 0.1",
    "bullets": "fineweb2.bullet_lines > 0.9",
    "ellipsis_lines": "fineweb2.ellipsis_lines > 0.3",
    "few_letters": "fineweb2.letter_words < 1",
    "few_stop_words": "fineweb2.stop_words < 2",
}

FINEWEB2 = Profile(
    name="fineweb2/scripts",
    version="1",
    description="FineWeb-2's rules by language, on words of any script; English has none here.",
    source="Penedo et al. 2025 (FineWeb-2); its fineweb-2-pipeline.py and configs/.",
    annotators={"fineweb2": {}},
    rules=tuple(_ANY_LANGUAGE.items()),
)


def _by_language() -> tuple[tuple[str, str], ...]:
    """FineWeb's rules for English, FineWeb-2's for all others: a reason that both have is one rule."""
    english = {reason: f"language.label in ['en', 'eng_Latn'] and ({drop})" for reason, drop in PIPELINE.rules}
    both = {reason: f"{drop} or {_ANY_LANGUAGE[reason]}" for reason, drop in english.items() if reason in _ANY_LANGUAGE}
    # It reads the label too, so that a recipe's rule on languages takes its place.
    # It reads the label too, so that a recipe's rule on languages takes its place.
    sure = {"language": "not language.accepted or language.label == 'und'"}
    return tuple((sure | english | _ANY_LANGUAGE | both).items())


LANGUAGES = Profile(
    name="fineweb/languages",
    version="1",
    description="English by FineWeb's rules, every other language by FineWeb-2's; the language must be sure.",
    source="Penedo et al. 2024 (FineWeb) and 2025 (FineWeb-2).",
    annotators={"language": {}, **PIPELINE.annotators, **FINEWEB2.annotators},
    rules=_by_language(),
)

REFINEDWEB = Profile(
    name="refinedweb/dclm",
    version="1",
    description="RefinedWeb's line rules: lines of capitals, numbers, counters, one word, navigation; at most 5%.",
    source="Penedo et al. 2023 (RefinedWeb), section G.2; DCLM baselines_configs/dclm_baseline_refinedweb.yaml.",
    annotators={"refinedweb_lines": {}},
    rules=(
        ("emptied", "refinedweb_lines.emptied or refinedweb_lines.words == 0"),
        ("removed_words", "refinedweb_lines.removed_words > 0.05"),
    ),
    edits=(("web_line", "refinedweb_lines.cuts"),),
)

DOLMA = Profile(
    name="dolma/1.6",
    version="1",
    description="Dolma 1.6's rules for web text that need no model: Gopher in its counting, and repeated tokens.",
    source="Soldaini et al. 2024; dolma configs/dolma-v1_6/mixing/cc-head.yaml, without toxicity, PII and duplicates.",
    annotators={**GOPHER_DOLMA.annotators, "repeated_tokens": {}},
    rules=(*GOPHER_DOLMA.rules, ("repeated_tokens", "repeated_tokens.times >= 100")),
)

CODE = Profile(
    name="code/redpajama",
    version="1",
    description="Source code as RedPajama v1 keeps it: no very long lines, and mostly letters and digits.",
    source="RedPajama v1, data_prep/github; DCLM content_filters.py (line_length, alphanumeric_char_ratio).",
    annotators={"characters": {}},
    rules=(
        ("empty", "characters.characters == 0"),
        ("long_line", "characters.longest_line > 1000"),
        ("long_lines", "characters.mean_line > 100"),
        ("few_alphanumerics", "characters.alphanumeric < 0.25"),
    ),
)

ALL = (FINEWEB, FINEWEB_WHITE_SPACE, PIPELINE, FINEWEB2, LANGUAGES, REFINEDWEB, DOLMA, CODE)
