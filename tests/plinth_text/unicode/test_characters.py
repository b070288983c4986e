import importlib.util
import sys

import numpy as np
import pytest

from plinth_text import unicode
from plinth_text.unicode import ALPHA, BREAK, PUNCTUATION, SPACE, TERMINAL, flags

POINTS = range(sys.maxunicode + 1)  # with surrogates, which are in no class


def having(flag: int) -> set[int]:
    return set(np.flatnonzero(flags() & flag).tolist()) - set(range(0xD800, 0xE000))


def test_white_space_line_ends_and_letters_are_pythons() -> None:
    assert having(SPACE) == {point for point in POINTS if chr(point).isspace()}
    assert having(BREAK) == {point for point in POINTS if len(f"a{chr(point)}b".splitlines()) == 2}
    assert having(ALPHA) == {point for point in POINTS if chr(point).isalpha()}


def test_a_line_end_is_white_space() -> None:
    assert having(BREAK) < having(SPACE)


@pytest.mark.skipif(importlib.util.find_spec("datatrove") is None, reason="a peer of the benchmarks")
def test_symbols_and_sentence_ends_are_datatroves() -> None:
    from datatrove.utils.text import PUNCTUATION_SET, TERMINAL_PUNCTUATION

    assert having(PUNCTUATION) == {ord(character) for character in PUNCTUATION_SET}
    assert having(TERMINAL) == {ord(character) for character in TERMINAL_PUNCTUATION}


def test_table_is_built_once() -> None:
    assert unicode.flags() is unicode.flags()
