"""SIMD MinHash: minima of upper halves by a vector instruction that the compiler does not find on its own.

For MinHash only the upper 32 bits of the least of many 64-bit values count. The least upper halves are those bits, and
processors compare 32-bit lanes twice as fast as 64-bit ones (AVX-512 on Zen 4), or have no instruction for the latter
(AVX2). The vectors are LLVM's, which every target lowers to what it has.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: 64-bit values that one step takes.
LANES = 8
_WIDE = ir.VectorType(ir.IntType(64), LANES)
_HALVES = ir.VectorType(ir.IntType(32), 2 * LANES)
_SAME = ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)  # a shuffle that takes the first lane for every one


def _every(builder: Any, value: Any) -> Any:
    """A value in all lanes."""
    nothing = ir.Constant(_WIDE, ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, nothing, _SAME)


def _least(builder: Any, values: list[Any]) -> Any:
    """The least of each 32-bit lane; pairs first, so that no comparison waits for all before it."""
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=False)
        less = [builder.select(builder.icmp_unsigned("<", one, two), one, two) for one, two in pairs]
        values = less + values[len(less) * 2 :]
    return values[0]


def _lower_upper_halves(typingctx: Any, minima: Any, a: Any, b: Any, at: Any, values: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def place(index: int) -> Any:
            proxy: Any = cgutils.create_struct_proxy
            array = proxy(signature.args[index])(context, builder, arguments[index])
            start = builder.gep(array.data, [context.cast(builder, arguments[3], signature.args[3], types.int64)])
            return builder.bitcast(start, _WIDE.as_pointer())

        unpacked: Any = cgutils.unpack_tuple  # which has no types
        target, factor, term = place(0), builder.load(place(1), align=8), builder.load(place(2), align=8)
        found = [builder.load(target, align=8)]
        for value in unpacked(builder, arguments[4]):
            found.append(builder.add(builder.mul(factor, _every(builder, value)), term))
        least = _least(builder, [builder.bitcast(one, _HALVES) for one in found])
        builder.store(builder.bitcast(least, _WIDE), target, align=8)
        return context.get_dummy_value()

    return types.void(minima, a, b, at, values), generate


#: `lower_upper_halves(minima, a, b, at, values)`: for the `LANES` places k from `at` on, the upper 32 bits of
#: `minima[k]` become the least of themselves and those of `a[k] * value + b[k]` for each value of a tuple. The lower
#: 32 bits are then undefined. The caller keeps `at + LANES` inside the arrays.
lower_upper_halves: Any = intrinsic(_lower_upper_halves)
