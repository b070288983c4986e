"""A keyed bijection of range(n), and its inverse, evaluated at any point in constant time.

The construction is the generalised Feistel cipher over a rectangle a x b >= n, with cycle walking for the
few points outside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). Its round
function is the 64-bit finaliser of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014) with Stafford's constants. It shuffles; it keeps no secrets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from math import isqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plinth import fingerprint
from plinth_text.compiled import compiled

ROUNDS = 6  # Luby and Rackoff need 4 for a strong permutation; small domains are worth two more
MAX_SIZE = 2**62

UInts = NDArray[np.uint64]
Ints = NDArray[np.int64]

#: Columns of a permutation's parameters: the rectangle, the size, floor((2^64 - 1) / side) of both sides; from here
#: on a key for each round.
_KEYS = 5


class Permutation:
    """A bijection of range(size) chosen by `key` (literals only: strings and integers).

    Attributes:
        parameters: [columns], a row of a table (`forward_each`).

    Raises:
        ValueError: for a size below 1 or above 2^62.
    """

    def __init__(self, size: int, *key: str | int) -> None:
        self.parameters = _parameters(size, [fingerprint.canonical(list(key))])[0]

    def forward(self, values: ArrayLike) -> Ints:
        """Where each value of range(size) goes. Shape is kept."""
        return self._moved(values, inverse=False)

    def inverse(self, values: ArrayLike) -> Ints:
        """Where each value of range(size) came from. Shape is kept."""
        return self._moved(values, inverse=True)

    def _moved(self, values: ArrayLike, inverse: bool) -> Ints:
        points = np.asarray(values, dtype=np.int64)
        flat = points.ravel()
        moved = np.empty(len(flat), np.int64)
        move(self.parameters[None], np.zeros(len(flat), np.int64), flat, inverse, moved)
        return moved.reshape(points.shape)


def numbered(size: int, key: tuple[str | int, ...], numbers: Iterable[int]) -> UInts:
    """The parameters of `Permutation(size, *key, number)` for each number, [n, columns]."""
    begin = fingerprint.canonical(list(key))[:-1]
    return _parameters(size, [b"%s,%d]" % (begin, number) for number in numbers])


def table_of(permutations: Sequence[Permutation]) -> UInts:
    """Their parameters, [n, columns]."""
    return np.stack([each.parameters for each in permutations])


def forward_each(table: UInts, owners: Ints, values: Ints) -> Ints:
    """Where each value goes under the permutation that it belongs to.

    Args:
        table: [permutations, columns] of their parameters.
        owners: [n] row of each value's permutation.
        values: [n].
    """
    moved = np.empty(len(values), np.int64)
    move(table, owners, values, False, moved)
    return moved


def _parameters(size: int, keys: list[bytes]) -> UInts:
    if not 1 <= size <= MAX_SIZE:
        raise ValueError(f"a permutation of {size} elements; expected 1 to 2^62")
    width = isqrt(size - 1) + 1  # rounded up, so that the rectangle has fewer than `width` points to spare
    height = -(-size // width)
    table = np.empty((len(keys), _KEYS + ROUNDS), np.uint64)
    table[:, :_KEYS] = width, height, size, (2**64 - 1) // width, (2**64 - 1) // height
    words = np.frombuffer(b"".join(hashlib.sha512(key).digest() for key in keys), "<u8")
    table[:, _KEYS:] = words.reshape(len(keys), 8)[:, :ROUNDS]
    return table


@compiled
def move(table: UInts, owners: Ints, values: Ints, inverse: bool, moved: Ints) -> None:
    """Fill in where each value goes under its permutation, or under its inverse."""


@compiled
def quotient(word: int, modulus: int, reciprocal: int) -> tuple[int, int]:
    """For tests: quotient and remainder by the reciprocal."""
