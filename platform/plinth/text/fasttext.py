"""fastText prediction over Arrow string buffers: for whole documents, and for blocks of lines within them.

Features and scores are those of fastText 0.9.2 for `text.replace("\\n", " ")`, as datatrove and FineWeb call it:
tokens end at the seven ASCII characters that fastText calls white space; a known word has a row of its own; each token
between `<` and `>` has its character n-grams, hashed with 32-bit FNV-1a over *signed* bytes; the end of the text is
one more token. The mean row goes through the label tree or a softmax. Two differences: a literal `</s>` does not end
a text, and sums are taken by word and block before they are added up, so the last bits may differ.

Words repeat: the sum over a word's n-grams is kept in a small table by the word's 64-bit hash, so that most words
cost one look. A **block** is a run of whole lines that ends at a blank line, or at the end of a line once it holds
enough letters: paragraphs, whether the text breaks its lines or not.

Letters: D documents, B judged blocks, P padded dimensions, L labels.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit, uint64

from plinth.text.characters import ALPHA, flags
from plinth.text.codepoints import decode, utf8
from plinth.text.fasttext_file import EOS, F32, I32, Model
from plinth.text.fasttext_scores import likeliest
from plinth.text.fasttext_words import ROOM, add, features, known, word_table
from plinth.text.ngrams import I64, U8, U64, mix

BROKEN = 32  # beside the flags of `characters`
#: Words whose sums are kept, a power of two: half a megabyte for 16 dimensions, which stays in the processor's cache.
CACHE = 1 << 13
#: Columns of the counts by document.
LETTERS, CHARACTERS, DAMAGED = 0, 1, 2

_SEPARATOR = np.zeros(256, dtype=np.bool_)
_SEPARATOR[[0, 9, 10, 11, 12, 13, 32]] = True
_ASCII_LETTER = np.array([chr(byte).isalpha() and byte < 128 for byte in range(256)], dtype=np.int64)
_FACTOR = np.uint64(0x9FB21C651E98DF25)
_NONE = np.int32(-1)


@dataclass(frozen=True)
class Found:
    """What was found in a column of texts.

    Args:
        labels, scores: the two likeliest labels (-1: none) and their probabilities, [D, 2].
        counts: letters, code points, damaged code points, [D, 3].
        block_doc, block_label, block_score: of judged blocks, [B].
        block_start, block_end: in code points of the document, [B].
    """

    labels: I32
    scores: F32
    counts: I64
    block_doc: I64
    block_label: I32
    block_score: F32
    block_start: I64
    block_end: I64


class Kernel:
    """A model, ready to be asked."""

    def __init__(self, model: Model) -> None:
        self.model = model
        table, slots = word_table(model)
        # What numba is given, in the order of `_judge`.
        self._arrays = (
            model.rows, model.kept, model.words, model.word_ends, table, slots, model.output,
            model.left, model.right,
        )  # fmt: skip
        bits = model.bucket.bit_length() + 31
        self._numbers = np.array(
            [model.nwords, model.minn, model.maxn, model.bucket, (1 << bits) // max(1, model.bucket), bits], np.uint64
        )
        self._eos = _eos(model, table, slots)

    def judge(self, texts: pa.Array, min_letters: int, max_characters: int = 0) -> Found:
        """Labels of texts, and of their blocks with at least `min_letters` letters.

        Args:
            texts: strings.
            min_letters: of a block that is judged, at least 1.
            max_characters: look at this much from the middle only; 0: everything.
        """
        data, offsets = utf8(texts)
        docs = offsets.size - 1
        most = int(offsets[-1] - offsets[0]) // max(1, min_letters) + 1
        labels, scores = np.full((docs, 2), _NONE), np.zeros((docs, 2), np.float32)
        counts = np.zeros((docs, 3), np.int64)
        blocks, sure = np.empty((most, 4), np.int64), np.empty(most, np.float32)
        size = _judge(
            data, offsets, min_letters, max_characters, *self._arrays, self._numbers, self._eos, point_flags(),
            labels, scores, counts, blocks, sure,
        )  # fmt: skip
        blocks, sure = blocks[:size].copy(), sure[:size].copy()
        return Found(
            labels, scores, counts, blocks[:, 0], blocks[:, 1].astype(np.int32), sure, blocks[:, 2], blocks[:, 3]
        )


@lru_cache(maxsize=1)
def point_flags() -> npt.NDArray[np.uint8]:
    """`ALPHA` and `BROKEN` by code point: private, unassigned, surrogate, C1 control, or U+FFFD."""
    table = flags() & np.uint8(ALPHA)
    broken = [point for point in range(0x110000) if unicodedata.category(chr(point)) in {"Cn", "Co", "Cs"}]
    table[broken] |= BROKEN
    table[0x80:0xA0] |= BROKEN
    table[0x85] &= 0xFF ^ BROKEN  # NEL is a line end
    table[0xFFFD] |= BROKEN
    return table


def _eos(model: Model, table: npt.NDArray[np.uint32], slots: I32) -> F32:
    """The row of the end of a text, which has no n-grams, and 1 behind it; zeros where the model has none."""
    data = np.frombuffer(EOS, dtype=np.uint8)
    word = known(data, 0, data.size, model.words, model.word_ends, table, slots)
    width = model.rows.shape[1]
    out = np.zeros(width + 1, dtype=np.float32)
    if 0 <= word < model.nwords:
        out[:width] = model.rows[word]
        out[width] = 1
    return out


@njit(nogil=True, cache=True)
def _judge(
    data: U8, offsets: I64, min_letters: int, max_characters: int, rows: F32, kept: U64, words: U8, ends: I64,
    table: Any, slots: I32, output: F32, left: I32, right: I32, numbers: U64, eos: F32, points: U8,
    labels: I32, scores: F32, counts: I64, blocks: I64, sure: F32,
) -> int:  # fmt: skip
    """Judge all documents; returns how many blocks were judged. The numbers are those of `Kernel.judge`."""
    width = rows.shape[1]
    keys = np.zeros(CACHE, np.uint64)
    sums, sizes = np.empty((CACHE, width), np.float32), np.empty(CACHE, np.int32)
    block, whole, mean = np.zeros(width, np.float32), np.zeros(width, np.float32), np.zeros(width, np.float32)
    stack, heights = np.empty(4 * output.shape[0] + 8, np.int64), np.empty(4 * output.shape[0] + 8, np.float32)
    best, top = np.empty(2, np.int32), np.empty(2, np.float32)
    found, room = np.empty(ROOM, np.int64), np.empty(_longest(offsets) + 3, np.uint8)
    judged = 0
    for doc in range(offsets.size - 1):
        at, stop, point = _middle(data, offsets[doc], offsets[doc + 1], max_characters)
        whole[:], block[:] = 0.0, 0.0
        total, size = 0, 0  # features of the text and of the block
        letters, first_point, line_filled = 0, point, False
        all_letters, begin_point, damaged = 0, point, 0
        while at < stop:
            byte = data[at]
            if _SEPARATOR[byte]:
                at += 1
                point += 1
                if byte == 10:
                    if not line_filled or letters >= min_letters:
                        if letters >= min_letters:
                            _mean(block, size, eos, mean)
                            likeliest(mean, output, left, right, 1, stack, heights, best, top)
                            _put(blocks, sure, judged, doc, best[0], first_point, point, top[0])
                            judged += 1
                        all_letters += letters
                        if size:
                            add(whole, block)
                            block[:] = 0.0
                        total += size
                        size, letters, first_point = 0, 0, point
                    line_filled = False
                continue
            line_filled = True
            start, key = at, uint64(0xCBF29CE484222325)
            while at < stop and not _SEPARATOR[data[at]]:
                byte = data[at]
                key = (key ^ uint64(byte)) * _FACTOR
                if byte < 128:
                    letters += _ASCII_LETTER[byte]
                    at += 1
                else:
                    wide, length = decode(data, at, stop)
                    for i in range(1, length):
                        key = (key ^ uint64(data[at + i])) * _FACTOR
                    flag = points[wide]
                    letters += (flag & ALPHA) != 0
                    damaged += (flag & BROKEN) != 0
                    if 0xC2 <= wide <= 0xEF and at + length < stop and data[at + length] >= 128:
                        damaged += _mojibake(wide, decode(data, at + length, stop)[0])
                    at += length
                point += 1
            key = mix(key ^ uint64(at - start)) | uint64(1)  # 0 is a free place
            slot = np.int64(key >> uint64(40)) & (CACHE - 1)
            if keys[slot] != key:
                sizes[slot] = features(
                    data, start, at, rows, kept, words, ends, table, slots, numbers, room, found, sums[slot]
                )
                keys[slot] = key
            add(block, sums[slot])
            size += sizes[slot]
        if letters >= min_letters:
            _mean(block, size, eos, mean)
            likeliest(mean, output, left, right, 1, stack, heights, best, top)
            _put(blocks, sure, judged, doc, best[0], first_point, point, top[0])
            judged += 1
        all_letters += letters
        add(whole, block)
        total += size
        counts[doc, LETTERS], counts[doc, CHARACTERS], counts[doc, DAMAGED] = all_letters, point - begin_point, damaged
        if all_letters:
            _mean(whole, total, eos, mean)
            likeliest(mean, output, left, right, 2, stack, heights, best, top)
            labels[doc, 0], labels[doc, 1], scores[doc, 0], scores[doc, 1] = best[0], best[1], top[0], top[1]
    return judged


@njit(inline="always")
def _longest(offsets: I64) -> Any:
    longest = 0
    for doc in range(offsets.size - 1):
        longest = max(longest, offsets[doc + 1] - offsets[doc])
    return longest


@njit(inline="always")
def _put(blocks: I64, sure: F32, row: int, doc: int, label: int, start: int, end: int, score: float) -> None:
    blocks[row, 0], blocks[row, 1], blocks[row, 2], blocks[row, 3] = doc, label, start, end
    sure[row] = score


@njit(inline="always")
def _mojibake(first: Any, second: Any) -> Any:
    """Whether two characters are what UTF-8 read as Latin-1 or Windows-1252 leaves behind."""
    upper = 0x80 <= second <= 0xBF
    if first == 0xC2 or first == 0xC3 or first == 0xD0 or first == 0xD1:
        return upper or second == 0x20AC or second == 0x2122 or 0x2018 <= second <= 0x203A or 0x152 <= second <= 0x192
    if first == 0xE2:
        return second == 0x20AC or second == 0x80 or second == 0x201A or second == 0x201E
    return first == 0xEF and second == 0xBB


@njit(nogil=True, cache=True)
def _middle(data: U8, start: int, end: int, most: int) -> tuple[int, int, int]:
    """Bytes of the middle `most` code points (0: all), and code points before them."""
    if most == 0 or end - start <= most:
        return start, end, 0
    total = 0
    for at in range(start, end):
        total += data[at] & 0xC0 != 0x80
    skipped = max(0, (total - most) // 2)
    at, passed = start, 0
    while at < end and passed < skipped:
        at += 1
        while at < end and data[at] & 0xC0 == 0x80:
            at += 1
        passed += 1
    stop, passed = at, 0
    while stop < end and passed < most:
        stop += 1
        while stop < end and data[stop] & 0xC0 == 0x80:
            stop += 1
        passed += 1
    return at, stop, skipped


@njit(inline="always")
def _mean(total: F32, size: int, eos: F32, out: F32) -> None:
    width = out.size
    count = np.float32(size) + eos[width]
    share = np.float32(1.0) / max(count, np.float32(1.0))
    for i in range(width):
        out[i] = (total[i] + eos[i]) * share
