"""Code points in UTF-8 buffers: decode one, lower-case it, and test whether it separates words.

The classes are ranges written out here, not tables of the running Python: the same text gives the same words under
every version.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.compiled import njit

LETTER, SEPARATOR, SINGLE = 0, 1, 2

#: Lower case of code points below U+0530, where it is one code point in the same range; else the point itself.
LOWER = np.array(
    [ord(chr(p).lower()) if len(chr(p).lower()) == 1 and ord(chr(p).lower()) < 0x530 else p for p in range(0x530)],
    dtype=np.uint32,
)

#: Beyond ASCII, first and last of each range of separators.
_SEPARATORS = (
    (0x0080, 0x00A9), (0x00AB, 0x00B4), (0x00B6, 0x00B9), (0x00BB, 0x00BF), (0x00D7, 0x00D7), (0x00F7, 0x00F7),
    (0x037E, 0x037E), (0x0387, 0x0387), (0x055A, 0x055F), (0x0589, 0x058A), (0x05BE, 0x05BE), (0x05C0, 0x05C0),
    (0x05C3, 0x05C3), (0x05F3, 0x05F4), (0x060C, 0x060D), (0x061B, 0x061F), (0x066A, 0x066D), (0x06D4, 0x06D4),
    (0x0964, 0x0965), (0x1680, 0x1680), (0x2000, 0x206F), (0x207A, 0x207E), (0x208A, 0x208E), (0x20A0, 0x20CF),
    (0x2190, 0x25FF), (0x2768, 0x27BF), (0x27C0, 0x2BFF), (0x2E00, 0x2E7F), (0x3000, 0x3004), (0x3008, 0x3020),
    (0x3030, 0x3030), (0x30A0, 0x30A0), (0x30FB, 0x30FB), (0xD800, 0xF8FF), (0xFE10, 0xFE6F), (0xFEFF, 0xFF0F),
    (0xFF1A, 0xFF20), (0xFF3B, 0xFF40), (0xFF5B, 0xFF65), (0xFFF0, 0xFFFF),
)  # fmt: skip
#: First and last of each range whose characters are words by themselves.
_SINGLES = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2600, 0x2767), (0x2E80, 0x2FFF), (0x3005, 0x3007),
    (0x3021, 0x302F), (0x3031, 0x309F), (0x30A1, 0x30FA), (0x30FC, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF), (0xFF66, 0xFF9D), (0x1F000, 0x1FAFF), (0x20000, 0x3FFFF),
)  # fmt: skip


def _classes() -> npt.NDArray[np.uint8]:
    table = np.zeros(0x40000, dtype=np.uint8)
    for ranges, value in ((_SEPARATORS, SEPARATOR), (_SINGLES, SINGLE)):
        for first, last in ranges:
            table[first : last + 1] = value
    return table


CLASSES = _classes()

#: White space of Unicode beyond ASCII, for folding.
WIDE_SPACES = np.array(
    [0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000], dtype=np.uint32
)


@njit(inline="always")
def kind(point: Any) -> Any:
    """`LETTER`, `SEPARATOR` or `SINGLE`, for a code point from U+0080 on."""
    return CLASSES[point] if point < CLASSES.size else np.uint8(LETTER)


@njit(inline="always")
def decode(data: Any, at: Any, end: Any) -> Any:
    """The code point that starts at `data[at]` (at least 128) and its length in bytes.

    Never reads at or past `end`: a sequence cut short is one separator of the bytes that are left.
    """
    lead = np.int64(data[at])
    size = 2 if lead < 0xE0 else (3 if lead < 0xF0 else 4)
    if at + size > end:
        return np.int64(0xFFFD), end - at
    point = lead & (0x7F >> size)
    for i in range(1, size):
        point = (point << 6) | (np.int64(data[at + i]) & 0x3F)
    return point, size


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
