"""Read, compare and hash runs of bytes in a buffer, eight bytes at a time.

Hashes of this module are compared within one call and never stored: they depend on the byte order of the machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types, uint64
from numba.core import cgutils
from numba.extending import intrinsic

from plinth.compiled import kernel, njit

U8 = npt.NDArray[np.uint8]

_FACTOR = np.uint64(0x9FB21C651E98DF25)
_FINAL = np.uint64(0xD6E8FEB86659FD93)
_TOPS = np.uint64(0x8080808080808080)
#: To fold ASCII letters, and to carry into the top bit of seven: from `a` on, and from behind `z` on.
_LOWER, _FROM_A, _PAST_Z = (np.uint64(byte * 0x0101010101010101) for byte in (0x20, 128 - 97, 127 - 122))


def _where(context: Any, builder: Any, types_of: Any, arguments: Any) -> Any:
    """Pointer to eight bytes, from an array of bytes and an index."""
    proxy: Any = cgutils.create_struct_proxy
    array = proxy(types_of[0])(context, builder, arguments[0])
    place = builder.gep(array.data, [context.cast(builder, arguments[1], types_of[1], types.int64)])
    return builder.bitcast(place, ir.IntType(64).as_pointer())


def _read8(typingctx: Any, data: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_where(context, builder, signature.args, arguments), align=1)

    return types.uint64(data, at), generate


def _write8(typingctx: Any, data: Any, at: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _where(context, builder, signature.args, arguments), align=1)
        return context.get_dummy_value()

    return types.void(data, at, types.uint64), generate


#: `read8(data, at)`: the eight bytes from `data[at]` on as one integer. The caller keeps them inside the buffer.
read8: Any = intrinsic(_read8)
#: `write8(data, at, value)`: the eight bytes of a value from `data[at]` on. The caller keeps them inside the buffer.
write8: Any = intrinsic(_write8)


def _popcount(typingctx: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


#: `popcount(value)`: number of bits that are set in a uint64.
popcount: Any = intrinsic(_popcount)


@njit(inline="always")
def low_bytes(value: Any, size: Any) -> Any:
    """The first `size` (1 to 8) bytes in memory of eight; zeros for the rest."""
    return value & (uint64(0xFFFFFFFFFFFFFFFF) >> uint64(64 - 8 * size))


@njit(inline="always")
def read(data: Any, at: Any, size: Any) -> Any:
    """Bytes `data[at : at + size]`, 1 to 8 of them, as one integer; reads nothing past the end of the buffer."""
    if at + 8 <= data.size:
        return low_bytes(read8(data, at), size)
    value = uint64(0)
    for k in range(size):
        value |= uint64(data[at + k]) << uint64(8 * k)
    return value


@njit(inline="always")
def letters_end(data: Any, at: Any, end: Any) -> Any:
    """The first position from `at` on with no ASCII letter, or `end`."""
    while at + 8 <= data.size:
        eight = read8(data, at)
        folded = (eight | _LOWER) & ~_TOPS
        others = ~((folded + _FROM_A) ^ (folded + _PAST_Z)) & _TOPS | eight & _TOPS
        if others:
            at += np.int64(popcount(~others & (others - uint64(1))) >> uint64(3))
            return min(at, end)
        at += 8
        if at >= end:
            return end
    while at < end and 97 <= data[at] | 32 <= 122:
        at += 1
    return at


@njit(inline="always")
def spread(value: Any) -> Any:
    """Every bit depends on the bits below it and, in the upper half, on all."""
    value = (value ^ (value >> uint64(32))) * _FINAL
    return value ^ (value >> uint64(29))


@njit(inline="always")
def hash_padded(data: Any, start: Any, end: Any) -> Any:
    """64-bit hash of `data[start:end]`; two different runs agree with a probability of about 2^-64.

    Reads up to 7 bytes past `end`, which must lie in the buffer.
    """
    state, at = uint64(end - start), start
    while at < end - 8:
        state = (state ^ read8(data, at)) * _FACTOR
        state ^= state >> uint64(32)
        at += 8
    if at < end:
        state += low_bytes(read8(data, at), end - at) * _FACTOR
    return spread(state)


@kernel
def hash_run(data: U8, start: int, end: int) -> Any:
    """As `hash_padded`, without reading past the end of the buffer."""
    state, at = uint64(end - start), start
    while at < end - 8:
        state = (state ^ read8(data, at)) * _FACTOR
        state ^= state >> uint64(32)
        at += 8
    if at < end:
        state += read(data, at, end - at) * _FACTOR
    return spread(state)


@kernel
def characters(data: U8, start: int, end: int) -> int:
    """Code points in `data[start:end]`: bytes that are no continuation."""
    count = 0
    for byte in data[start:end]:
        count += (byte & 0xC0) != 0x80
    return count


@kernel
def is_ascii(data: U8, start: int, end: int) -> bool:
    """Whether no byte of `data[start:end]` is above 127."""
    joined = np.uint8(0)
    for byte in data[start:end]:
        joined |= byte
    return bool(joined < 128)


@kernel
def ascii_end(data: U8, start: int, end: int) -> int:
    """The first position of `data[start:end]` with a byte above 127, or `end`."""
    at = start
    while at + 8 <= end and read8(data, at) & _TOPS == 0:
        at += 8
    while at < end and data[at] < 128:
        at += 1
    return at
