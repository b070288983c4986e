"""An address as an array inside compiled code: how a kernel reads from many mapped files in one call.

Whoever passes an address keeps the array it belongs to alive until the kernel returns.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic


def _pointer(typingctx: Any, address: Any, like: Any) -> Any:
    element: Any = types.CPointer(like.dtype)  # type: ignore[no-untyped-call]

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(element))

    return element(types.int64, like), codegen


#: In compiled code, `pointer(address, like)` points to elements like those of an array, at an int64 address.
pointer: Any = intrinsic(_pointer)
