"""Code points in UTF-8 buffers: decoding, lower case, classes for words (`codepoints.h`); the buffers of a column.

The classes are ranges written out in `codepoints.c`, not tables of the running Python: the same text gives the same
words under every version.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth_text.compiled import compiled

#: The class of a code point beyond ASCII: part of a word, between words, or a word by itself.
LETTER, SEPARATOR, SINGLE = 0, 1, 2
#: Code points below this may have a lower case (`lower`), and those below the other one a class.
LOWER_SIZE, CLASSES_SIZE = 0x530, 0x40000


@compiled
def lower_table(out: npt.NDArray[np.uint32]) -> None:
    """Fill [`LOWER_SIZE`] with lower cases: one code point in the same range; else the point itself."""


@compiled
def class_table(out: npt.NDArray[np.uint8]) -> None:
    """Fill [`CLASSES_SIZE`] with `LETTER`, `SEPARATOR` or `SINGLE`."""


@compiled
def characters(data: npt.NDArray[np.uint8], points: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> int:
    """For tests: fill in the code point and the length of each character; returns the number of characters."""


@lru_cache(maxsize=1)
def lower() -> npt.NDArray[np.uint32]:
    """Lower case of code points, [`LOWER_SIZE`]."""
    out = np.empty(LOWER_SIZE, dtype=np.uint32)
    lower_table(out)
    return out


def utf8(texts: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The bytes [B] and offsets [D + 1] of a string column, without a copy where it is a `large_string`.

    Offsets point into the bytes and need not start at 0: the array may be a slice. A null text is empty.
    """
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    if not pa.types.is_large_string(texts.type):
        texts = texts.cast(pa.large_string())
    if texts.null_count:
        texts = texts.fill_null("")
    _, raw_offsets, raw_data = texts.buffers()
    if len(texts) == 0:
        return np.zeros(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    offsets = np.frombuffer(raw_offsets, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(raw_data, dtype=np.uint8) if raw_data is not None else np.zeros(0, dtype=np.uint8)
    return data, offsets
