"""Repeated lines, paragraphs and word n-grams: Gopher's repetition rules (Rae et al. 2021, table A1).

Counted as datatrove 0.10 counts: the first copy of a line is no duplicate; the top n-gram counts all its
copies, also when there is one; a repeated n-gram is skipped whole, so that its characters count once, and is
compared without the spaces between its words. Words are spaCy's, as in datatrove, or what white space separates.
Equality is that of 64-bit hashes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.compiled import kernel
from plinth.text.english.columns import I32, NO_WORDS, ColumnWords, column_words
from plinth.text.rules import copies
from plinth.text.rules.copies import CopyBuffers, pack, repeated, tops
from plinth.text.unicode.characters import flags
from plinth.text.unicode.codepoints import utf8
from plinth.text.words.chunks import characters, hash_run, is_ascii
from plinth.text.words.hash_sets import seen, shift_for, slot_count
from plinth.text.words.ngrams import I64, U8, U64
from plinth.text.words.split import edge_buffer, line_ends, split

F64 = npt.NDArray[np.float64]

#: Columns of `repetition_shares`.
COLUMNS = (
    "duplicate_lines", "duplicate_line_characters", "duplicate_paragraphs", "duplicate_paragraph_characters",
    "top_2_gram", "top_3_gram", "top_4_gram",
    "duplicate_5_grams", "duplicate_6_grams", "duplicate_7_grams", "duplicate_8_grams", "duplicate_9_grams",
    "duplicate_10_grams",
)  # fmt: skip


def repetition_shares(texts: pa.Array, english: bool = False) -> F64:
    """Shares of each text, [documents, 13] in the order of `COLUMNS`, of lines, paragraphs or characters.

    `english`: words are spaCy's.
    """
    data, offsets = utf8(texts)
    out = np.zeros((len(texts), len(COLUMNS)), dtype=np.float64)
    longest = int(np.diff(offsets).max(initial=0))
    buffers = copies.copy_buffers(longest, longest if english else longest // 2)
    words, edges = column_words(data, offsets) if english else NO_WORDS, edge_buffer(offsets, np.int32)
    _repetition(data, offsets, flags(), words, edges, buffers, np.zeros(9, dtype=np.int64), out)
    return out


@kernel
def _repetition(
    data: U8, offsets: I64, table: U8, words: ColumnWords, edges: I32, buffers: CopyBuffers, grams: I64, out: F64
) -> None:
    for doc in range(offsets.size - 1):
        text, size = data[offsets[doc] :], offsets[doc + 1] - offsets[doc]
        if not size:
            continue
        plain = is_ascii(text, 0, size)
        total = size if plain else characters(text, 0, size)
        if words.first.size:
            found, n = words.edges[2 * words.first[doc] :], words.first[doc + 1] - words.first[doc]
        else:
            found, n = edges, split(text, 0, size, table, edges)
        left, right = (found[0], found[2 * n - 1]) if n else (0, 0)
        pack(text, found, n, buffers)
        tops(n, plain, buffers, grams[:3])
        repeated(n, plain, buffers, grams[3:])
        for k in range(9):
            out[doc, 4 + k] = grams[k] / total
        ends = edges  # the words are placed: their edges are not needed any more
        lines = line_ends(text, 0, size, ends)
        pieces, again, of = _pieces(text, 0, size, ends, lines, 1, plain, buffers.keys)
        out[doc, 0], out[doc, 1] = again / pieces, of / total
        pieces, again, of = _pieces(text, left, right, ends, lines, 2, plain, buffers.keys)
        out[doc, 2], out[doc, 3] = again / pieces, of / total


@kernel
def _pieces(
    data: U8, start: int, end: int, ends: I32, found: int, breaks: int, plain: bool, keys: U64
) -> tuple[int, int, int]:
    """Split at runs of at least `breaks` line ends: all pieces, the repeated ones, and their characters."""
    size = slot_count(min(found + 1, (end - start) // 2 + 3))
    shift = shift_for(size)
    keys[:size] = 0
    pieces, again, repeated = 0, 0, 0
    begin, i = start, 0
    while i < found and ends[i] < start:
        i += 1
    while True:
        stop, after = end, end  # the piece ends at `stop`; the next one starts at `after`
        last = True
        while i < found and ends[i] < end:
            stop = ends[i]
            run = 1
            while i + run < found and ends[i + run] == stop + run and stop + run < end:
                run += 1
            i += run
            if run >= breaks:
                after, last = stop + run, False
                break
            stop = end
        pieces += 1
        if seen(keys, size, shift, hash_run(data, begin, stop)):
            again += 1
            repeated += stop - begin if plain else characters(data, begin, stop)
        if last:
            return pieces, again, repeated
        begin = after
