"""Published filter rules as named, versioned profiles: `policies: {default: {profiles: [gopher/datatrove, c4/dclm]}}`.

    base        the class that describes a profile
    gopher      Gopher's rules as datatrove, Dolma and RedPajama-v2 count them
    c4          C4's line and page rules: the paper's, datatrove's, FineWeb's, DCLM's, Dolma's
    web         FineWeb's rules, RefinedWeb's line rules, RedPajama-v2's signals, Dolma's repetitions, source code
    registry    all profiles by name

There is no single definition of "Gopher", because projects count words, copies and stop words differently. A profile's
name is `family/project`; tests/agreement compares the profile with that project. A profile contains no code, only
expressions over the columns of annotators. Not here: the computation of columns (annotators), and verdicts (the policy
stage).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from plinth.corpus.policy.expressions import syntax
from plinth.errors import RecipeError
from plinth.extensions import nearest

__all__ = ["PROFILES", "Profile", "profile", "resolved"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Profile:
    """Published rules of a project.

    Args:
        name: `family/project`.
        version: version of the profile; raise it when a rule changes. It is not part of a policy's identity, because
            the rules are.
        description: one sentence for the catalog.
        source: paper, and file in the project's repository.
        rules: pairs `(reason, drop)` in the project's order.
        edits: pairs `(reason, spans)` that cut spans from the text of kept documents.
        annotators: annotators whose columns the rules read, each with parameters that count as the project does.
    """

    name: str
    version: str
    description: str
    source: str
    rules: tuple[tuple[str, str], ...]
    edits: tuple[tuple[str, str], ...] = ()
    annotators: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _NOTHING)

    @property
    def family(self) -> str:
        """Family of the rules: `gopher` in `gopher/dolma`."""
        return self.name.partition("/")[0]

    @property
    def project(self) -> str:
        """Name of the project in reasons: `dolma` in `gopher/dolma`, `v1_6` in `dolma/1.6`."""
        word = "".join(letter if letter.isalnum() else "_" for letter in self.name.partition("/")[2].lower())
        return f"v{word}" if word[:1].isdigit() else word


#: Maximum share of characters in repeated n-grams, by n-gram length.
_REPEATED = {5: "0.15", 6: "0.14", 7: "0.13", 8: "0.12", 9: "0.11", 10: "0.10"}
#: Maximum share of characters in the most frequent n-gram.
_TOP = {2: "0.20", 3: "0.18", 4: "0.16"}


def _grams(column: str, top: tuple[int, ...] = (2, 3, 4)) -> tuple[tuple[str, str], ...]:
    """Return the rules for repeated n-grams, which read the columns of the sidecar `column`."""
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


GOPHER_DATATROVE = _datatrove(
    "gopher/datatrove",
    "datatrove",
    "Gopher as in datatrove, on spaCy's words: first the repetition rules, then the quality rules.",
)
GOPHER_WHITE_SPACE = _datatrove(
    "gopher/white-space",
    "white-space",
    "Gopher as in datatrove, but on words separated by white space, as in the paper.",
)

#: In the order of Dolma's mixer. It allows duplicate lines 0.3 of the characters, not 0.2, and has no paragraphs.
GOPHER_DOLMA = Profile(
    name="gopher/dolma",
    version="1",
    description="Gopher as in Dolma, which uses the median word length, and counts all copies of lines and stop words.",
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
    description="Gopher on RedPajama-v2's signals: at most 10,000 words; a top n-gram without repeats counts as 0.",
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

GOPHER_ALL = (GOPHER_DATATROVE, GOPHER_WHITE_SPACE, GOPHER_DOLMA, REDPAJAMA)


# C4's rules (Raffel et al. 2020, section 2.2) as five projects apply them.
#
# The list of bad words is left out of all: name one of yours in `corpus.lists` and use the lexicon annotator.

_PAPER = "Raffel et al. 2020, section 2.2"


def _datatrove_c4(name: str, ends: bool, description: str, source: str, counting: str = "datatrove") -> Profile:
    return Profile(
        name=name,
        version="2",
        description=description,
        source=source,
        annotators={
            "c4": {
                "profile": counting,
                "min_words_per_line": 3,
                "terminal_punctuation": ends,
                "max_word_characters": 1000,
            }
        },
        rules=(
            ("too_few_sentences", "c4.sentences < 5"),
            ("lorem_ipsum", "c4.lorem_ipsum_lines > 0"),
            ("curly_bracket", "c4.curly_bracket_lines > 0"),
        ),
    )


DATATROVE = _datatrove_c4(
    "c4/datatrove", True, "C4 as in datatrove's default filter, which scores lines without cutting them.",
    f"{_PAPER}; datatrove 0.10 c4_filters.py.",
)  # fmt: skip
FINEWEB = _datatrove_c4(
    "c4/fineweb", False, "C4 as in FineWeb: a line need not end a sentence.",
    "Penedo et al. 2024, section 3; datatrove 0.10 examples/fineweb.py.",
)  # fmt: skip
WHITE_SPACE = _datatrove_c4(
    "c4/white-space", True, "C4 as in datatrove, but sentences end at punctuation before white space.",
    f"{_PAPER}; datatrove 0.10 c4_filters.py.", "white-space",
)  # fmt: skip


def _lines(name: str, profile: str, sentences: int, more: tuple[tuple[str, str], ...] = (), **texts: str) -> Profile:
    return Profile(
        name=name,
        version="1",
        annotators={"c4_lines": {"profile": profile, "max_word_characters": 1000}},
        rules=(
            *more,
            ("lorem_ipsum", "c4_lines.lorem_ipsum"),
            ("curly_bracket", "c4_lines.curly_bracket"),
            ("too_few_sentences", f"c4_lines.sentences < {sentences}"),
        ),
        edits=(("c4_line", "c4_lines.cuts"),),
        **texts,
    )


PAPER = _lines(
    "c4/paper", "paper", 5,
    description="C4 with the limits of the paper's first version (3 words per line, 5 sentences), in the order of "
    "its code.",
    source=f"{_PAPER} (first version); TensorFlow Datasets, text/c4_utils.py.",
)  # fmt: skip
DCLM = _lines(
    "c4/dclm", "dclm", 3, more=(("too_long", "c4_lines.characters > 190000"),),
    description="C4 as implemented in DCLM: 5 words per line, 3 sentences, at most 190,000 characters.",
    source="Li et al. 2024 (DCLM); baselines_configs/c4.yaml, to the first count of sentences.",
)  # fmt: skip
DOLMA = Profile(
    name="c4/dolma",
    version="1",
    description="C4 as Dolma's tagger c4_v2 marks it: phrases anywhere drop a page, two rules cut lines.",
    source="Soldaini et al. 2024; dolma 1.2 taggers/c4.py, configs/c4-replication/mixer.yaml.",
    annotators={"c4_lines": {"profile": "dolma"}},
    rules=(
        ("curly_bracket", "c4_lines.curly_bracket"),
        ("lorem_ipsum", "c4_lines.lorem_ipsum"),
        ("javascript", "c4_lines.javascript"),
    ),
    edits=(("c4_line", "c4_lines.cuts"),),
)

ALL = (PAPER, DATATROVE, FINEWEB, WHITE_SPACE, DCLM, DOLMA)


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


WEB_FINEWEB = _fineweb(
    "fineweb/datatrove", "FineWeb's custom rules alone: line ends, short lines, repeated lines, lists.", "datatrove"
)
FINEWEB_WHITE_SPACE = _fineweb(
    "fineweb/white-space", "FineWeb's custom rules alone, on words separated by white space.", "white-space"
)

PIPELINE = Profile(
    name="fineweb/pipeline",
    version="1",
    description="FineWeb's text filters in their order: Gopher, C4, then FineWeb's rules on the text after C4.",
    source="Penedo et al. 2024 (FineWeb), section 3; datatrove 0.10 examples/fineweb.py.",
    annotators={
        **GOPHER_DATATROVE.annotators,
        **FINEWEB.annotators,
        "fineweb": {**WEB_FINEWEB.annotators["fineweb"], "after_c4": True},
    },
    rules=(*GOPHER_DATATROVE.rules, *FINEWEB.rules, *WEB_FINEWEB.rules),
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
    description="FineWeb-2's rules by language, on words of any script; not for English.",
    source="Penedo et al. 2025 (FineWeb-2); its fineweb-2-pipeline.py and configs/.",
    annotators={"fineweb2": {}},
    rules=tuple(_ANY_LANGUAGE.items()),
)


def _by_language() -> tuple[tuple[str, str], ...]:
    """Return FineWeb's rules for English and FineWeb-2's rules for all other languages. Rules with the same reason are
    merged."""
    english = {reason: f"language.label in ['en', 'eng_Latn'] and ({drop})" for reason, drop in PIPELINE.rules}
    both = {reason: f"{drop} or {_ANY_LANGUAGE[reason]}" for reason, drop in english.items() if reason in _ANY_LANGUAGE}
    # It reads the label too, so that a recipe's rule on languages takes its place.
    # It reads the label too, so that a recipe's rule on languages takes its place.
    sure = {"language": "not language.accepted or language.label == 'und'"}
    return tuple((sure | english | _ANY_LANGUAGE | both).items())


LANGUAGES = Profile(
    name="fineweb/languages",
    version="1",
    description="FineWeb's rules for English, FineWeb-2's for other languages; requires a confident language label.",
    source="Penedo et al. 2024 (FineWeb) and 2025 (FineWeb-2).",
    annotators={"language": {}, **PIPELINE.annotators, **FINEWEB2.annotators},
    rules=_by_language(),
)

REFINEDWEB = Profile(
    name="refinedweb/dclm",
    version="1",
    description="RefinedWeb's line rules: drops pages with over 5% of words in lines of capitals, numbers or "
    "navigation.",
    source="Penedo et al. 2023 (RefinedWeb), section G.2; DCLM baselines_configs/dclm_baseline_refinedweb.yaml.",
    annotators={"refinedweb_lines": {}},
    rules=(
        ("emptied", "refinedweb_lines.emptied or refinedweb_lines.words == 0"),
        ("removed_words", "refinedweb_lines.removed_words > 0.05"),
    ),
    edits=(("web_line", "refinedweb_lines.cuts"),),
)

WEB_DOLMA = Profile(
    name="dolma/1.6",
    version="1",
    description="Dolma 1.6's model-free rules for web text: Gopher as Dolma counts it, and repeated tokens.",
    source="Soldaini et al. 2024; dolma configs/dolma-v1_6/mixing/cc-head.yaml, without toxicity, PII and duplicates.",
    annotators={**GOPHER_DOLMA.annotators, "repeated_tokens": {}},
    rules=(*GOPHER_DOLMA.rules, ("repeated_tokens", "repeated_tokens.times >= 100")),
)

CODE = Profile(
    name="code/redpajama",
    version="1",
    description="RedPajama v1's rules for source code: no very long lines, and mostly letters and digits.",
    source="RedPajama v1, data_prep/github; DCLM content_filters.py (line_length, alphanumeric_char_ratio).",
    annotators={"characters": {}},
    rules=(
        ("empty", "characters.characters == 0"),
        ("long_line", "characters.longest_line > 1000"),
        ("long_lines", "characters.mean_line > 100"),
        ("few_alphanumerics", "characters.alphanumeric < 0.25"),
    ),
)

WEB_ALL = (WEB_FINEWEB, FINEWEB_WHITE_SPACE, PIPELINE, FINEWEB2, LANGUAGES, REFINEDWEB, WEB_DOLMA, CODE)

PROFILES: dict[str, Profile] = {one.name: one for one in (*GOPHER_ALL, *ALL, *WEB_ALL)}


def profile(name: str) -> Profile:
    """Return a profile by name.

    Raises:
        RecipeError: there is no profile with this name; the error suggests the nearest name.
    """
    if name not in PROFILES:
        remedy = nearest(name, PROFILES) or "profiles are named `family/project`"
        raise RecipeError(f"no profile {name!r}", expected=", ".join(PROFILES), remedy=remedy)
    return PROFILES[name]


#: A reason, and an expression or a column of spans.
Pairs = tuple[tuple[str, str], ...]


def resolved(names: Sequence[str], rules: Pairs, edits: Pairs) -> tuple[Pairs, Pairs]:
    """Return the rules and edits of a policy, preceded by the rules and edits of the named profiles.

    If a profile's reason is already used, it gets the family's name as a prefix (`c4_lorem_ipsum`), and if necessary
    the project's name as well. A rule of the policy replaces a profile's rule that has the same reason and reads the
    same columns, so that a threshold can be changed. If the policy's rule reads other columns, both rules stay, and the
    profile's rule gets the longer name.

    Raises:
        RecipeError: there is no profile with one of these names.
    """
    chosen = [profile(name) for name in dict.fromkeys(names)]
    return (
        _joined([(one, one.rules) for one in chosen], rules),
        _joined([(one, one.edits) for one in chosen], edits),
    )


def _joined(profiles: Sequence[tuple[Profile, Pairs]], own: Pairs) -> Pairs:
    given = dict(reversed(own))  # of several with one reason, an error that `compile_policy` reports, the first
    found: dict[str, str] = {}
    for one, pairs in profiles:
        for reason, value in pairs:
            name = _name(reason, value, one, found, given)
            found[name] = given.get(name, value)
    return (*found.items(), *(pair for pair in own if pair[0] not in found))


def _name(reason: str, value: str, one: Profile, found: Mapping[str, str], given: Mapping[str, str]) -> str:
    """Return the shortest name for a profile's rule that no earlier rule has. The name may be that of a policy's rule
    only if both rules read the same columns."""
    names = (reason, f"{one.family}_{reason}", f"{one.family}_{one.project}_{reason}")
    free = (name for name in names if name not in found)
    return next((name for name in free if name not in given or _columns(given[name]) == _columns(value)), names[-1])


def _columns(expression: str) -> frozenset[str]:
    """Return the columns that an expression names. If the expression cannot be parsed, return its text, because `parse`
    reports the error later."""
    try:
        tree = syntax(expression)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset({expression})
    return frozenset(ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute))
