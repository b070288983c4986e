"""Dense features of a text, by hand on a small one, and compared with slow references on random Unicode."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth_text import scoring as fd


def test_counts_of_a_small_text() -> None:
    text = "The cat.\n- ITEM 42\nThe cat.\n\nWow!!! {x}\n"
    n = fd.counts(pa.array([text], pa.large_string()))[0]
    assert n[fd.POINTS] == len(text)
    assert n[fd.LETTERS] == sum(one.isalnum() for one in text)
    assert (n[fd.UPPER], n[fd.DIGITS], n[fd.SHOUTS], n[fd.BRACKETS]) == (7, 2, 3, 2)
    assert n[fd.BLANKS] == sum(one.isspace() for one in text)
    assert n[fd.CHUNKS] == len(text.split())
    assert (n[fd.LINES], n[fd.ENDED], n[fd.SHORT], n[fd.BULLETS]) == (4, 2, 4, 1)
    assert (n[fd.COPIES], n[fd.COPIED]) == (1, 7)
    assert (n[fd.WORDS], n[fd.DISTINCT], n[fd.COMMON]) == (8, 6, 2)
    assert n[fd.LONGEST] == 3


def test_features_are_named_and_an_empty_text_has_zeros() -> None:
    made = fd.dense(pa.array(["", "one line"], pa.large_string()))
    assert made.shape == (2, len(fd.NAMES))
    assert not made[0].any()
    assert made[1][fd.NAMES.index("characters_per_word")] == pytest.approx(3.5)
    assert fd.dense(pa.array([], pa.large_string())).shape == (0, len(fd.NAMES))


@settings(deadline=None)  # the first example compiles
@given(st.lists(st.text(max_size=200), min_size=1, max_size=4))
def test_on_any_text_they_are_finite_and_what_python_counts(texts: list[str]) -> None:
    column = pa.array(["before", *texts], pa.large_string()).slice(1)
    n = fd.counts(column)
    assert np.isfinite(fd.dense(column)).all()
    for row, text in zip(n, texts, strict=True):
        assert row[fd.POINTS] == len(text)
        assert row[fd.DIGITS] == sum(one in "0123456789" for one in text)
        assert row[fd.WIDE] == sum(not one.isascii() for one in text)
        assert row[fd.DISTINCT] <= row[fd.WORDS]
        assert row[fd.COPIES] <= row[fd.LINES] <= text.count("\n") + 1
