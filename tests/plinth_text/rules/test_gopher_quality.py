import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth_text.rules import fineweb
from plinth_text.rules import gopher as gopher_quality
from plinth_text.unicode import PUNCTUATION, flags, utf8

STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}


def gopher(text: str) -> list[int]:
    """The counts in plain Python, as datatrove's filter has them."""
    words, lines = text.split(), text.splitlines()
    plain = [word for word in words if any(not flags()[ord(c)] & PUNCTUATION for c in word)]
    return [
        len(words),
        len(plain),
        sum(map(len, plain)),
        text.count("#"),
        text.count("...") + text.count("…"),
        len(lines),
        sum(line.lstrip().startswith(("•", "-")) for line in lines),
        sum(line.rstrip().endswith(("...", "…")) for line in lines),
        sum(any(c.isalpha() for c in word) for word in words),
        len(STOP_WORDS & set(words)),
    ]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_gopher_counts_are_those_of_plain_python(any_texts: st.SearchStrategy[list[str]], data: st.DataObject) -> None:
    texts = data.draw(any_texts)
    assert gopher_quality.gopher_counts(pa.array(texts, pa.large_string())).tolist() == [gopher(text) for text in texts]


def test_a_space_alone_is_a_line() -> None:
    for text in (" ", "  ", "\t", " \n", "\n "):
        assert gopher_quality.gopher_counts(pa.array([text], pa.large_string()))[0].tolist() == gopher(text)


def test_gopher_counts_by_hand() -> None:
    text = "- The #1 of “quotes” ...\n• and … so.....\r\n\r\n  -- it ends…  \n"
    # words: - The #1 of “quotes” ... • and … so..... -- it ends…; without letter or digit: - ... • … --
    counted = gopher_quality.gopher_counts(pa.array([text], pa.large_string()))[0]
    assert counted[gopher_quality.WORDS] == 13
    assert counted[gopher_quality.PLAIN_WORDS] == 9  # • is not a symbol of datatrove's
    assert counted[gopher_quality.HASHES] == 1
    assert counted[gopher_quality.ELLIPSES] == 4  # "so....." holds one ellipsis and two more dots
    assert counted[gopher_quality.LINES] == 4
    assert counted[gopher_quality.BULLETS] == 3
    assert counted[gopher_quality.ELLIPSIS_LINES] == 3
    assert counted[gopher_quality.ALPHA_WORDS] == 7
    assert counted[gopher_quality.STOP_WORDS] == 2  # of, and; "The" is not lower case


@pytest.mark.parametrize("english", [False, True])
@pytest.mark.parametrize(
    "count", [gopher_quality.gopher_counts, lambda texts, english: fineweb.fineweb_counts(*utf8(texts), 30, english)]
)
def test_slices_nulls_and_nothing(count, english: bool) -> None:  # type: ignore[no-untyped-def]
    texts = pa.array(["first", "the second one.", None, ""], pa.large_string())
    whole = count(texts, english).tolist()
    assert count(texts[1:3], english).tolist() == whole[1:3]
    assert whole[2] == whole[3] == [0] * len(whole[0])
    assert count(texts[:0], english).shape == (0, len(whole[0]))
