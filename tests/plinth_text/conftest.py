"""Random texts that are rich in what the kernels decide by."""

import pytest
from hypothesis import strategies as st

#: Line ends and spaces of all kinds, symbols that rules name, letters of one to four bytes.
TELLING = list("\n\n\n  \t\r\x0b\x0c\x1c\x1f\x85\u00a0\u2028\u3000\x00..!?\"')(#-•…[]{}。？1a b the be of éßЖ中أ😀𝒳")
WORDS = [
    "the", "of", "and", "with", "The", "a", "b", "ab", "aa", "-", "..", "...", "…", "#", "x1", "ü", "数", "end.", "»",
]  # fmt: skip
LINES = [
    "Read our terms of use now.", "We set cookies and JavaScript is on.", "Lorem ipsum dolor sit.", "if (x) { y } now.",
    "It ended [3] here. [edit]", "It is so.[citation needed]", "One. Two! Three? 4.5 five.", "- bullet", "• bullet",
    "short", "He said: “no”.", "wait for it...", "and so..", "a b c", "  ", "",
]  # fmt: skip


def texts() -> st.SearchStrategy[str]:
    """Characters, words or lines in any order."""
    characters = st.text(st.one_of(st.sampled_from(TELLING), st.characters(exclude_categories=["Cs"])), max_size=60)
    words = st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join)
    lines = st.lists(st.one_of(st.sampled_from(LINES), words, characters), max_size=12)
    joined = st.tuples(lines, st.sampled_from(["\n", "\n\n", "\r\n", "\n\n\n"])).map(lambda pair: pair[1].join(pair[0]))
    return st.one_of(characters, words, joined, st.lists(joined, max_size=3).map("\n".join))


@pytest.fixture(scope="session")
def any_texts() -> st.SearchStrategy[list[str]]:
    return st.lists(texts(), max_size=4)
