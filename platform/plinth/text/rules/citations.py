"""Marks of citations in C4's line rules: `[1]`, `[edit]`, `[citation needed]`."""

from __future__ import annotations

import numpy as np

from plinth.compiled import kernel
from plinth.text.words.ngrams import U8

_CITATIONS = (b"edit]", b"citation needed]")
_ENDS = np.cumsum([0, *map(len, _CITATIONS)]).astype(np.int64)
_BYTES = np.frombuffer(b"".join(_CITATIONS), dtype=np.uint8)


@kernel
def citation_bytes(data: U8, at: int, end: int) -> int:
    """Bytes of the citation that starts at the bracket `at` and ends before `end`; 0 for none."""
    stop = at + 1
    while stop < end and 48 <= data[stop] <= 57:
        stop += 1
    if stop < end and data[stop] == 93:
        return stop + 1 - at
    for k in range(_ENDS.size - 1):
        size = _ENDS[k + 1] - _ENDS[k]
        same, i = at + 1 + size <= end, 0
        while same and i < size:
            same = data[at + 1 + i] == _BYTES[_ENDS[k] + i]
            i += 1
        if same:
            return int(size + 1)
    return 0
