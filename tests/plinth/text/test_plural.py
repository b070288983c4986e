"""Counts in words: the noun and the verb follow the number."""

import pytest

from plinth.text import counted


@pytest.mark.parametrize(
    ("number", "what", "verb", "words"),
    [
        (1, "step", "", "1 step"), (0, "step", "", "0 steps"), (2, "step", "", "2 steps"),
        (1234, "document", "be", "1,234 documents are"), (1, "document", "be", "1 document is"),
        (1, "entry", "hold", "1 entry holds"), (2, "entry", "hold", "2 entries hold"), (2, "key", "", "2 keys"),
        (2, "more copy", "", "2 more copies"),
    ],
)  # fmt: skip
def test_nouns_and_verbs(number: int, what: str, verb: str, words: str) -> None:
    assert counted(number, what, verb) == words
