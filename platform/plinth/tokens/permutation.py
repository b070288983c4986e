"""A keyed bijection of range(n), and its inverse, evaluated at any point in constant time.

The construction is the generalised Feistel cipher over a rectangle a x b >= n, with cycle walking for the
few points outside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). Its round
function is the 64-bit finaliser of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014) with Stafford's constants. It shuffles; it keeps no secrets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from math import isqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plinth import fingerprint

ROUNDS = 6  # Luby and Rackoff need 4 for a strong permutation; small domains are worth two more
MAX_SIZE = 2**62

UInts = NDArray[np.uint64]
Ints = NDArray[np.int64]


def mix64(values: UInts) -> UInts:
    """SplitMix64's finaliser: a bijection of 64-bit words whose every output bit depends on every input bit."""
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


class Permutation:
    """A bijection of range(size) chosen by `key` (literals only: strings and integers).

    Raises:
        ValueError: for a size below 1 or above 2^62.
    """

    def __init__(self, size: int, *key: str | int) -> None:
        if not 1 <= size <= MAX_SIZE:
            raise ValueError(f"a permutation of {size} elements; expected 1 to 2^62")
        self.size = size
        width = isqrt(size - 1) + 1  # rounded up, so that the rectangle has fewer than `width` points to spare
        self._width, self._height = np.uint64(width), np.uint64(-(-size // width))
        words = np.frombuffer(hashlib.sha512(fingerprint.canonical(list(key))).digest(), dtype="<u8")
        self._keys = [np.uint64(word) for word in words[:ROUNDS]]

    def forward(self, values: ArrayLike) -> Ints:
        """Where each value of range(size) goes. Shape is kept."""
        return self._walk(values, self._encrypt)

    def inverse(self, values: ArrayLike) -> Ints:
        """Where each value of range(size) came from. Shape is kept."""
        return self._walk(values, self._decrypt)

    def _walk(self, values: ArrayLike, turn: Callable[[UInts], UInts]) -> Ints:
        points = np.atleast_1d(np.asarray(values, dtype=np.int64)).astype(np.uint64)
        moved = turn(points)
        outside = np.flatnonzero(moved >= np.uint64(self.size))
        while outside.size:
            moved[outside] = turn(moved[outside])
            outside = outside[moved[outside] >= np.uint64(self.size)]
        return moved.astype(np.int64).reshape(np.shape(values))

    def _encrypt(self, points: UInts) -> UInts:
        row, column = np.divmod(points, self._width)
        for index, key in enumerate(self._keys):
            if index % 2 == 0:
                column = (column + mix64(row + key) % self._width) % self._width
            else:
                row = (row + mix64(column + key) % self._height) % self._height
        return row * self._width + column

    def _decrypt(self, points: UInts) -> UInts:
        row, column = np.divmod(points, self._width)
        for index, key in reversed(list(enumerate(self._keys))):
            if index % 2 == 0:
                column = (column + (self._width - mix64(row + key) % self._width)) % self._width
            else:
                row = (row + (self._height - mix64(column + key) % self._height)) % self._height
        return row * self._width + column
