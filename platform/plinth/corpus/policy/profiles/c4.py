"""C4's rules (Raffel et al. 2020, section 2.2) as five projects apply them.

The list of bad words is left out of all: name one of yours in `corpus.lists` and use the lexicon annotator.
"""

from __future__ import annotations

from plinth.corpus.policy.profiles.base import Profile

_PAPER = "Raffel et al. 2020, section 2.2"


def _datatrove(name: str, ends: bool, description: str, source: str, counting: str = "datatrove") -> Profile:
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


DATATROVE = _datatrove(
    "c4/datatrove", True, "C4 as datatrove's filter does by default; lines are judged, not cut.",
    f"{_PAPER}; datatrove 0.10 c4_filters.py.",
)  # fmt: skip
FINEWEB = _datatrove(
    "c4/fineweb", False, "C4 as FineWeb uses it: a line need not end a sentence.",
    "Penedo et al. 2024, section 3; datatrove 0.10 examples/fineweb.py.",
)  # fmt: skip
WHITE_SPACE = _datatrove(
    "c4/white-space", True, "datatrove's C4 with sentences that end at marks before white space.",
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
    description="C4 with the paper's first numbers, 3 words a line and 5 sentences, in the order of its code.",
    source=f"{_PAPER} (first version); TensorFlow Datasets, text/c4_utils.py.",
)  # fmt: skip
DCLM = _lines(
    "c4/dclm", "dclm", 3, more=(("too_long", "c4_lines.characters > 190000"),),
    description="C4 as DCLM rebuilds it: 5 words a line, 3 sentences, at most 190,000 characters.",
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
