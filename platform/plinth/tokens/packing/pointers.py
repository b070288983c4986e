"""Addresses inside compiled code: a kernel reads from many mapped files in one call, many tokens at a time.

The caller keeps the array behind an address alive until the kernel returns.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

#: Tokens that `copy_and_match` copies at a time: two registers of AVX-512 for 16-bit tokens; its result has a bit each.
LANES = 64

_INT32, _BYTES = ir.IntType(32), ir.PointerType(ir.IntType(8))


def _pointer(typingctx: Any, address: Any, like: Any) -> Any:
    element: Any = types.CPointer(like.dtype)  # type: ignore[no-untyped-call]

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(element))

    return element(types.int64, like), codegen


def _copy_and_match(typingctx: Any, source: Any, target: Any, wanted: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        token = context.get_value_type(wanted)
        vector, bits = ir.VectorType(token, LANES), ir.IntType(LANES)
        places = [builder.inttoptr(address, ir.PointerType(vector)) for address in arguments[:2]]
        values = builder.load(places[0], align=token.width // 8)
        builder.store(values, places[1], align=token.width // 8)
        undefined = ir.Constant(vector, ir.Undefined)
        one = builder.insert_element(undefined, arguments[2], ir.Constant(_INT32, 0))
        every = builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(_INT32, LANES), [0] * LANES))
        return builder.bitcast(builder.icmp_unsigned("==", values, every), bits)

    return types.uint64(types.int64, types.int64, wanted), codegen


def _lowest_bit(typingctx: Any, bits: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen


def _prefetch(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_BYTES, _INT32, _INT32, _INT32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [_BYTES], kind)
        builder.call(function, [builder.inttoptr(arguments[0], _BYTES), _INT32(0), _INT32(2), _INT32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


#: In compiled code, `pointer(address, like)` points to elements like those of an array, at an int64 address.
pointer: Any = intrinsic(_pointer)
#: `copy_and_match(source, target, wanted)` copies `LANES` tokens between addresses; bit i of the result is set where
#: token i is `wanted`.
copy_and_match: Any = intrinsic(_copy_and_match)
#: `lowest_bit(bits)` is the number of the lowest set bit; at least one must be set.
lowest_bit: Any = intrinsic(_lowest_bit)
#: `prefetch(address)` loads a cache line that is read soon; an invalid address is ignored.
prefetch: Any = intrinsic(_prefetch)
