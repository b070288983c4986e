import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth_text.rules.fineweb import fineweb_counts
from plinth_text.unicode import TERMINAL, flags, utf8
from tests.plinth_text.english_text import words


def counts(text: str, short: int, english: bool) -> list[int]:
    """Plain Python, as datatrove's filter has it."""
    lines = [line for line in text.split("\n") if line.strip()]
    repeated = [line for i, line in enumerate(lines) if line in lines[:i]]
    return [
        len(lines),
        sum(bool(flags()[ord(line[-1])] & TERMINAL) for line in lines),
        sum(len(line) <= short for line in lines),
        sum(map(len, repeated)),
        len(text.replace("\n", "")),
        text.count("\n"),
        len(words(text) if english else text.split()),
    ]


@settings(max_examples=300, deadline=None)
@given(data=st.data(), short=st.integers(1, 40), english=st.booleans())
def test_fineweb_counts_are_those_of_plain_python(
    any_texts: st.SearchStrategy[list[str]], data: st.DataObject, short: int, english: bool
) -> None:
    texts = data.draw(any_texts)
    found = fineweb_counts(*utf8(pa.array(texts, pa.large_string())), short, english).tolist()
    assert found == [counts(text, short, english) for text in texts]


def test_fineweb_counts_by_hand() -> None:
    text = "One sentence.\n\nno end\nno end\n \nÜber all!"
    assert fineweb_counts(*utf8(pa.array([text], pa.large_string())), 9)[0].tolist() == [4, 2, 3, 6, 35, 5, 8]
