"""An address as an array inside compiled code: how a kernel reads from many mapped files in one call.

Whoever passes an address keeps the array it belongs to alive until the kernel returns.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic


@intrinsic
def pointer(typingctx: Any, address: Any, like: Any) -> Any:
    """A pointer to elements of the array `like` at `address` (int64); for `numba.carray`."""
    element = types.CPointer(like.dtype)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(element))

    return element(types.int64, like), codegen
