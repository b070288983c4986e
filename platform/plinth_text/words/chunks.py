"""Read, compare and hash runs of bytes in a buffer, eight bytes at a time (`chunks.h`).

Hashes of this module are compared within one call and never stored: they depend on the byte order of the machine.
"""

from __future__ import annotations

from plinth_text.arrays import U8, U64
from plinth_text.compiled import compiled


@compiled
def hash_run(data: U8, start: int, end: int) -> int:
    """Return a 64-bit hash of `data[start:end]`; two different runs agree with a probability of about 2^-64."""


@compiled
def characters(data: U8, start: int, end: int) -> int:
    """Count the code points of `data[start:end]`: bytes that are not continuations."""


@compiled
def is_ascii(data: U8, start: int, end: int) -> bool:
    """Return whether no byte of `data[start:end]` is above 127."""


@compiled
def reads(data: U8, out: U64) -> None:
    """For tests: `out[at, size]` becomes the `size` bytes at `at` as one integer, `out[0, 0]` the first eight."""
