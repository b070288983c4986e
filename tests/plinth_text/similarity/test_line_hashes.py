"""Lines, paragraphs and their hashes agree with slow, obvious Python on random Unicode."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth_text.similarity import close_gaps, edge_lines, lines, paragraphs
from plinth_text.words import ngram_hashes
from tests.plinth_text.folding import fold_text

texts = st.lists(
    st.text(st.sampled_from("aB1é Σ\t\xa0\u2009\n\r.-{_日本ก😀\u0301"), max_size=40) | st.text(max_size=30), max_size=6
)


def split(text: str) -> list[str]:
    pieces = text.split("\n")
    return [piece + "\n" for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])


def column(found: list[str]) -> pa.Array:
    return pa.array(found, pa.large_string())


@settings(deadline=None)  # the first example may compile a kernel
@given(texts)
def test_places_are_those_of_python(found: list[str]) -> None:
    got = lines(column(found))
    for doc, text in enumerate(found):
        first, last = got.starts[doc], got.starts[doc + 1]
        pieces = [text[got.start_cp[i] : got.end_cp[i]] for i in range(first, last)]
        assert pieces == split(text)
        assert [int(got.byte[i + 1] - got.byte[i]) for i in range(first, last)] == [len(p.encode()) for p in pieces]


@given(texts)
def test_hashes_are_equal_where_the_folded_lines_are(found: list[str]) -> None:
    got = lines(column(found))
    folded = [fold_text(piece) for text in found for piece in split(text)]
    assert [int(n) for n in got.size] == [len(one.replace(" ", "")) for one in folded]
    keys = list(zip(got.high.tolist(), got.low.tolist(), strict=True))
    assert len(set(keys)) == len(set(folded)) == len(set(zip(keys, folded, strict=True)))
    assert len({key for key, _ in keys}) == len(set(folded))  # each half alone tells them apart
    assert len({low for _, low in keys}) == len(set(folded))


@given(texts)
def test_words_are_those_of_ngrams(found: list[str]) -> None:
    got = lines(column(found))
    pieces = [piece for text in found for piece in split(text)]
    starts, _ = ngram_hashes(column(pieces), 1)
    assert got.words.tolist() == np.diff(starts).tolist()


@given(texts, st.integers(1, 3))
def test_paragraphs_and_edges(found: list[str], count: int) -> None:
    got = lines(column(found))
    blocks = paragraphs(got)
    expected, at, marked = [], 0, []
    for text in found:
        run: list[int] = []
        solid = [at + i for i, piece in enumerate(split(text)) if fold_text(piece)]
        for i in solid:
            if run and i == run[-1] + 1:
                run.append(i)
            else:
                expected += [run] if run else []
                run = [i]
        expected += [run] if run else []
        marked += solid[:count] + solid[-count:]
        at += len(split(text))
    assert [list(range(a, b)) for a, b in zip(blocks.first, blocks.last, strict=True)] == expected
    assert np.flatnonzero(edge_lines(got, count)).tolist() == sorted(set(marked))
    by_lines = [tuple(got.high[run].tolist()) for run in expected]
    assert len(set(blocks.high.tolist())) == len(set(blocks.low.tolist())) == len(set(by_lines))


def test_structural_lines_tell_nothing() -> None:
    got = lines(column(["----\n}\n  \n* a\n…\n1.\n日\n"]))
    assert got.alphanumeric.tolist() == [False, False, False, True, False, True, True]


def gaps(text: str, cut: str) -> str:
    """Return the rest of a text after lines with these letters are cut."""
    got = lines(column([text]))
    marks = np.array([piece.strip() in cut.split() for piece in split(text)], dtype=np.uint8)
    close_gaps(got.starts, got.size, marks)
    return "".join(piece for piece, mark in zip(split(text), marks, strict=True) if not mark)


def test_blank_lines_that_cuts_leave_behind() -> None:
    assert gaps("A\n\nB\n\nC\n", "B") == "A\n\nC\n"
    assert gaps("A\nB\n\nC\n", "B") == "A\n\nC\n"
    assert gaps("A\n\nB\nC\n", "B") == "A\n\nC\n"
    assert gaps("A\nB\n\nX\n\nC\n", "B X") == "A\n\nC\n"
    assert gaps("A\n\n\nB\n\n\nC\n", "B") == "A\n\n\nC\n"
    assert gaps("B\n\nC\n", "B") == "C\n"
    assert gaps("A\n\n\nC\n", "B") == "A\n\n\nC\n"
