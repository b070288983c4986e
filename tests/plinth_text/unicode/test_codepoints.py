import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth_text.arrays import U8
from plinth_text.unicode import CLASSES_SIZE, LETTER, SEPARATOR, SINGLE, characters, class_table, lower, utf8


def _points(data: U8) -> list[tuple[int, int]]:
    """Code point and length of each character."""
    points, sizes = np.zeros((2, data.size), dtype=np.int64)
    count = characters(data, points, sizes)
    return list(zip(points[:count].tolist(), sizes[:count].tolist(), strict=True))


@settings(deadline=None)
@given(st.text(min_size=1, max_size=40))
def test_decode_reads_what_python_wrote(text: str) -> None:
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    assert _points(data) == [(ord(c), len(c.encode())) for c in text]


@pytest.mark.parametrize("beyond", [b"\xf4\x90\x80\x80", b"\xf7\xbf\xbf\xbf", b"\xff\xff\xff\xff"])
def test_no_code_point_is_beyond_unicode(beyond: bytes) -> None:
    """Tables of characters end there, and a column may hold bytes that are not UTF-8."""
    data = np.frombuffer(b"\xf4\x8f\xbf\xbf" + beyond, dtype=np.uint8)
    assert _points(data) == [(0x10FFFF, 4), (0xFFFD, 4)]


@pytest.mark.parametrize("cut", ["é", "中", "😀"])
def test_decode_never_reads_past_the_end(cut: str) -> None:
    whole = cut.encode()
    for size in range(1, len(whole)):
        data = np.frombuffer(b"a" + whole, dtype=np.uint8)
        assert _points(data[1 : 1 + size]) == [(0xFFFD, size)]


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
    """As Python has it, where that is one code point in the same range."""
    python = [chr(point).lower() for point in range(0x530)]
    expected = [ord(low) if len(low) == 1 and ord(low) < 0x530 else point for point, low in enumerate(python)]
    assert lower().tolist() == expected
    assert [chr(lower()[ord(c)]) for c in "AZaz09_ÀéΣЖ"] == list("azaz09_àéσж")
    assert lower()[0x130] == 0x130  # İ has a lower case of two code points


def test_classes_of_code_points() -> None:
    table = np.empty(CLASSES_SIZE, dtype=np.uint8)
    class_table(table)
    kinds = {"é": LETTER, "«": SEPARATOR, "\u2003": SEPARATOR, "中": SINGLE, "か": SINGLE, "ไ": SINGLE, "😀": SINGLE}
    assert {char: int(table[ord(char)]) for char in kinds} == kinds
    assert hashlib.sha256(table.tobytes()).hexdigest()[:16] == "405535226a8525b0"
