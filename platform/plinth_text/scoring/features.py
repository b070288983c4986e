"""Words and pairs of words as rows of a hashed table: the features of linear models, and their scores.

Words are those of `ngrams`: lower-cased runs of letters, digits and underscores. Every word and every two
successive words are one feature each; a feature's row is the top bits of its hash (the hashing trick, Weinberger
et al. 2009, as fastText uses it for word n-grams: Joulin et al. 2016). A text's margin is the mean of the rows of its
features plus a bias. fastText's mean of word vectors times its output matrix is such a table, of lower rank.

Letters: D texts, F features of all of them, R = 2^bits rows, K labels.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from plinth_text.arrays import F32, F64, I32, I64, U8, U64
from plinth_text.compiled import compiled
from plinth_text.unicode.codepoints import utf8
from plinth_text.words.word_hashes import scratch


def rows(texts: pa.Array, bits: int, max_words: int) -> tuple[I64, I32]:
    """The rows of the features of every text, words first, then pairs; of the first `max_words` words.

    Returns:
        starts [D + 1] and rows [F]: text d has `rows[starts[d]:starts[d + 1]]`, none where it has no words.
    """
    data, offsets = utf8(texts)
    words = scratch(offsets)
    starts = np.zeros(offsets.size, dtype=np.int64)
    most = np.minimum(np.diff(offsets) // 2 + 2, max_words)
    out = np.empty(int(2 * most.sum()), dtype=np.int32)
    fill_rows(data, offsets, 64 - bits, max_words, words, starts, out)
    return starts, out[: starts[-1]].copy()


@compiled
def fill_rows(data: U8, offsets: I64, shift: int, max_words: int, words: U64, starts: I64, out: I32) -> None:
    """As `rows`; `words` is scratch memory."""


def margins(texts: pa.Array, table: F32, bias: F32, window: int = 0) -> F64:
    """The margin of every text for every label, [D, K]; the bias alone where a text has no words.

    Args:
        table: [R, K], R a power of two.
        bias: [K].
        window: words of a stretch; a text longer than that has the largest margin of its stretches, the last of
            which ends with the text, so that a short passage of a long text is not averaged away. 0: the whole text.
    """
    data, offsets = utf8(texts)
    out = np.empty((len(texts), table.shape[1]), dtype=np.float64)
    shift = 64 - (table.shape[0].bit_length() - 1)
    words = scratch(offsets)
    if table.shape[1] == 1:
        one_margin(data, offsets, table.reshape(-1), bias[0], shift, window, words, out.reshape(-1))
    else:
        every_margin(data, offsets, table, bias, shift, window, words, np.empty(bias.size), out)
    return out


@compiled
def one_margin(data: U8, offsets: I64, table: F32, bias: float, shift: int, window: int, words: U64, out: F64) -> None:
    """As `margins`, for one label; `words` is scratch memory."""


@compiled
def every_margin(
    data: U8, offsets: I64, table: F32, bias: F32, shift: int, window: int, words: U64, total: F64, out: F64
) -> None:
    """As `margins`; `words` and `total`, [K], are scratch memory."""
