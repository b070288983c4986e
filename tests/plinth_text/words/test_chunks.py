import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth_text.unicode import flags, utf8
from plinth_text.words import breaks, characters, count_words, edge_buffer, hash_run, is_ascii, line_ends, reads, split


@given(st.binary(max_size=20))
@settings(deadline=None)
def test_reads_are_the_bytes_there(text: bytes) -> None:
    found = np.zeros((len(text), 9), dtype=np.uint64)
    reads(np.frombuffer(text, dtype=np.uint8), found)
    for at in range(len(text)):
        for size in range(1, min(8, len(text) - at) + 1):
            assert int(found[at, size]) == int.from_bytes(text[at : at + size], "little")
    if len(text) >= 8:
        assert int(found[0, 0]) == int.from_bytes(text[:8], "little")


@given(st.lists(st.binary(max_size=20), max_size=20))
@settings(deadline=None)
def test_hashes_are_equal_when_the_bytes_are_wherever_they_lie(runs: list[bytes]) -> None:
    data = np.frombuffer(b"".join(runs), dtype=np.uint8)
    ends = np.cumsum([0, *map(len, runs)])
    hashes = [int(hash_run(data, int(ends[i]), int(ends[i + 1]))) for i in range(len(runs))]
    assert len(set(zip(runs, hashes, strict=True))) == len(set(runs)) == len(set(hashes))


@settings(deadline=None)
@given(data=st.data())
def test_words_and_lines_are_those_of_plain_python(
    any_texts: st.SearchStrategy[list[str]], data: st.DataObject
) -> None:
    texts = data.draw(any_texts)
    bytes_, offsets = utf8(pa.array(texts, pa.large_string()))
    out = edge_buffer(offsets)
    for text, start, end in zip(texts, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        raw = text.encode()
        plain = is_ascii(bytes_, start, end)
        assert plain == text.isascii()
        assert characters(bytes_, start, end) == len(text)
        count = split(bytes_, start, end, flags(), out)
        pairs = (out[: 2 * count] - start).reshape(-1, 2).tolist()
        assert [raw[a:b].decode() for a, b in pairs] == text.split()
        assert count_words(bytes_, start, end, plain, flags()) == count
        assert count_words(bytes_, start, end, False, flags()) == count
        found = line_ends(bytes_, start, end, out)
        assert (out[:found] - start).tolist() == [i for i, byte in enumerate(raw) if byte == 10]
        found = breaks(bytes_, start, end, flags(), out)
        single = [len(text[:i].encode()) for i, c in enumerate(text) if len(f"a{c}a".splitlines()) == 2]
        assert (out[:found] - start).tolist() == single
