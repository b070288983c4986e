"""Addresses inside compiled code: how a kernel reads from many mapped files in one call, many tokens at a time.

Whoever passes an address keeps the array it belongs to alive until the kernel returns.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

#: Tokens that `moved` takes at a time: two registers of AVX-512 where a token is 16 bits, and a bit each in its answer.
LANES = 64

_INT32, _BYTES = ir.IntType(32), ir.PointerType(ir.IntType(8))


def _pointer(typingctx: Any, address: Any, like: Any) -> Any:
    element: Any = types.CPointer(like.dtype)  # type: ignore[no-untyped-call]

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(element))

    return element(types.int64, like), codegen


def _moved(typingctx: Any, source: Any, target: Any, wanted: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        token = context.get_value_type(wanted)
        vector, bits = ir.VectorType(token, LANES), ir.IntType(LANES)
        places = [builder.inttoptr(address, ir.PointerType(vector)) for address in arguments[:2]]
        values = builder.load(places[0], align=token.width // 8)
        builder.store(values, places[1], align=token.width // 8)
        anything = ir.Constant(vector, ir.Undefined)
        one = builder.insert_element(anything, arguments[2], ir.Constant(_INT32, 0))
        every = builder.shuffle_vector(one, anything, ir.Constant(ir.VectorType(_INT32, LANES), [0] * LANES))
        return builder.bitcast(builder.icmp_unsigned("==", values, every), bits)

    return types.uint64(types.int64, types.int64, wanted), codegen


def _lowest(typingctx: Any, bits: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen


def _fetch(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_BYTES, _INT32, _INT32, _INT32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [_BYTES], kind)
        builder.call(function, [builder.inttoptr(arguments[0], _BYTES), _INT32(0), _INT32(2), _INT32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


#: In compiled code, `pointer(address, like)` points to elements like those of an array, at an int64 address.
pointer: Any = intrinsic(_pointer)
#: `moved(source, target, wanted)` copies `LANES` tokens between addresses; bit i is set where token i is `wanted`.
moved: Any = intrinsic(_moved)
#: `lowest(bits)` is the number of the lowest bit that is set; at least one is.
lowest: Any = intrinsic(_lowest)
#: `fetch(address)` asks for a line of memory that is read soon; nothing happens where there is none.
fetch: Any = intrinsic(_fetch)
