import hashlib

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth_text.unicode import LOWER_SIZE, digests
from plinth_text.unicode import lower as lower_cases
from tests.plinth_text.folding import fold_text


def folded(text: str) -> str:
    """Plain Python; `str.split` knows the white space meant here."""
    lower = "".join(chr(lower_cases()[ord(c)]) if ord(c) < LOWER_SIZE else c for c in text)
    return " ".join(lower.split())


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_fold_is_that_of_plain_python(any_texts: st.SearchStrategy[list[str]], data: st.DataObject) -> None:
    texts = data.draw(any_texts)
    assert [fold_text(text) for text in texts] == [folded(text) for text in texts]
    expected = [hashlib.sha256(folded(text).encode()).digest()[:16] for text in texts]
    assert digests(pa.array(texts, pa.large_string())).to_pylist() == expected


def test_case_and_white_space_do_not_tell_texts_apart() -> None:
    assert fold_text(" ÄB\u3000c\r\n\td  ") == "äb c d"
    assert fold_text("a,b") != fold_text("a b")
    assert fold_text(" \n ") == ""
