import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth_text.rules import c4

RULES = {
    "lorem": ["lorem ipsum"],
    "javascript": ["javascript"],
    "curly": ["{"],
    "notice": ["terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies"],
}
NAMES = (
    "lines", "kept", "sentences", "long_word", "unended", "few_words", "lorem", "javascript", "curly", "notice",
)  # fmt: skip


def lower(text: str) -> str:
    return "".join(c.lower() if c.isascii() else c for c in text)


def sentences(line: str) -> int:
    pieces = re.split(r"[.!?]+[\"')]*(?=[ \t]|\Z)", line)
    full = [piece for piece in pieces if any(c > " " for c in re.sub(r"[.!?]+[\"')]*", "", piece))]
    return max(1, len(full))


def judge(line: str, min_words: int, longest: int, ends_required: bool) -> str:
    line = line.strip()
    words = line.split()
    if any(len(word) > longest for word in words):
        return "long_word"
    line = re.sub(r"\[[0-9]*\]|\[edit\]|\[citation needed\]", "", line)
    if ends_required and (not line.endswith((".", "?", "!", '"', "'")) or line.endswith("...")):
        return "unended"
    if len(words) < min_words:
        return "few_words"
    for name, phrases in RULES.items():
        if any(phrase in lower(line) for phrase in phrases):
            return name
    return "kept"


def counts(text: str, *rules: int) -> list[int]:
    """Plain Python."""
    found = dict.fromkeys(NAMES, 0)
    for line in text.splitlines():
        what = judge(line, *rules)
        found["lines"] += 1
        found[what] += 1
        if what == "kept":
            found["sentences"] += sentences(re.sub(r"\[[0-9]*\]|\[edit\]|\[citation needed\]", "", line.strip()))
    return list(found.values())


@settings(max_examples=400, deadline=None)
@given(data=st.data(), min_words=st.integers(0, 5), longest=st.integers(1, 20), ends_required=st.booleans())
def test_counts_are_those_of_plain_python(
    any_texts: st.SearchStrategy[list[str]], data: st.DataObject, min_words: int, longest: int, ends_required: bool
) -> None:
    texts = data.draw(any_texts)
    found = c4.pages(pa.array(texts, pa.large_string()), c4.Lines(min_words, longest, ends_required)).counts.tolist()
    assert found == [counts(text, min_words, longest, ends_required) for text in texts]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("It is a line that stays.", "kept"),
        ('She said it was "enough"', "kept"),
        ("It is a line without an end", "unended"),
        ("It trails off, as lines do...", "unended"),
        ("Too short.", "few_words"),
        ("Please turn on JavaScript to see this page.", "javascript"),
        ("All of it is Lorem Ipsum to me.", "lorem"),
        ("The set is written {1, 2} here.", "curly"),
        ("You accept our Privacy Policy by reading on.", "notice"),
        (f"One word is {'x' * 1001} too long.", "long_word"),
        ("The sources say so [12][edit].[citation needed]", "kept"),
        ("The sources say so. [12]", "unended"),  # as datatrove: the space before the citation stays
        ("   ", "unended"),
    ],
)
def test_what_becomes_of_a_line(line: str, what: str) -> None:
    counts = c4.pages(pa.array([line], pa.large_string()), c4.Lines(3, 1000)).counts[0].tolist()
    found = dict(zip(NAMES, counts, strict=True))
    assert found.pop("lines") == 1
    assert found.pop("sentences") == (what == "kept")
    assert {name for name, count in found.items() if count} == {what}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("One. Two! Three?", 3),
        ("Version 4.5 of it came out.", 1),
        ('He said "no." Then he left.', 2),
        ("What?! Really...  yes.", 3),
        ("See e.g. this one.", 2),  # an abbreviation counts as an end, in every line alike
    ],
)
def test_sentences_of_a_line(line: str, expected: int) -> None:
    assert c4.pages(pa.array([line], pa.large_string()), c4.Lines(1, 1000)).counts[0, c4.SENTENCES] == expected
