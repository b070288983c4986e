"""Fold texts: texts that differ only in case and white space become equal.

Letters are lower-cased as in `ngrams`; runs of white space (ASCII and Unicode) become one space, none at the
ends. The rest, punctuation included, stays as it is.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa

from plinth_text.arrays import U8
from plinth_text.compiled import compiled
from plinth_text.unicode.codepoints import utf8


def digests(texts: pa.Array) -> pa.Array:
    """The first 16 bytes of SHA-256 over each folded text, as `binary(16)`."""
    data, offsets = utf8(texts)
    longest = int(np.diff(offsets).max(initial=0))
    out = np.empty(longest + 1, dtype=np.uint8)
    view = out.data
    values = bytearray()
    for doc in range(offsets.size - 1):
        size = fold(data, offsets[doc], offsets[doc + 1], out)
        values += hashlib.sha256(view[:size]).digest()[:16]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), offsets.size - 1, [None, pa.py_buffer(bytes(values))])


@compiled
def fold(data: U8, start: int, end: int, out: U8) -> int:
    """Fold `data[start:end]` into `out`, which must hold one byte more; returns the folded length."""
