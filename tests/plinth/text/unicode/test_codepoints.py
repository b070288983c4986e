import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from plinth.text.unicode.codepoints import LOWER, decode, utf8


@njit
def _points(data, start, end):  # type: ignore[no-untyped-def]
    """Code point and length of each character."""
    out = []
    at = start
    while at < end:
        point, size = (np.int64(data[at]), 1) if data[at] < 128 else decode(data, at, end)
        out.append((point, size))
        at += size
    return out


@settings(deadline=None)
@given(st.text(min_size=1, max_size=40))
def test_decode_reads_what_python_wrote(text: str) -> None:
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    assert _points(data, 0, data.size) == [(ord(c), len(c.encode())) for c in text]


@pytest.mark.parametrize("cut", ["é", "中", "😀"])
def test_decode_never_reads_past_the_end(cut: str) -> None:
    whole = cut.encode()
    for size in range(1, len(whole)):
        data = np.frombuffer(b"a" + whole, dtype=np.uint8)
        assert _points(data, 1, 1 + size) == [(0xFFFD, size)]


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.text(max_size=8)), max_size=8), st.data())
def test_buffers_of_slices_and_nulls(texts: list[str | None], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(texts)))
    kind = data.draw(st.sampled_from([pa.string(), pa.large_string()]))
    column = pa.array(texts, kind)[start:]
    if data.draw(st.booleans()):
        column = pa.chunked_array([column[: len(column) // 2], column[len(column) // 2 :]], kind)
    found, offsets = utf8(column)
    assert [found[offsets[i] : offsets[i + 1]].tobytes().decode() for i in range(offsets.size - 1)] == [
        text or "" for text in texts[start:]
    ]


def test_a_large_string_is_read_in_place() -> None:
    column = pa.array(["first", "second"], pa.large_string())
    data, _ = utf8(column[1:])
    assert data.ctypes.data == column.buffers()[2].address


def test_lower_case_is_one_point_to_another() -> None:
    assert LOWER.size == 0x530
    assert [chr(LOWER[ord(c)]) for c in "AZaz09_ÀéΣЖ"] == list("azaz09_àéσж")
    assert LOWER[0x130] == 0x130  # İ has a lower case of two code points
