"""A keyed bijection of range(n), and its inverse, evaluated at any point in constant time.

The construction is the generalised Feistel cipher over a rectangle a x b >= n, with cycle walking for the
few points outside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). Its round
function is the 64-bit finaliser of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014) with Stafford's constants. It shuffles; it keeps no secrets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from math import isqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plinth import fingerprint
from plinth.tokens.splitmix import mix64

ROUNDS = 6  # Luby and Rackoff need 4 for a strong permutation; small domains are worth two more
MAX_SIZE = 2**62

UInts = NDArray[np.uint64]
Ints = NDArray[np.int64]


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
        self._keys = words[:ROUNDS, None]

    def forward(self, values: ArrayLike) -> Ints:
        """Where each value of range(size) goes. Shape is kept."""
        return self._walk(values, self._encrypt, self._keys)

    def inverse(self, values: ArrayLike) -> Ints:
        """Where each value of range(size) came from. Shape is kept."""
        return self._walk(values, self._decrypt, self._keys)

    def _walk(self, values: ArrayLike, turn: Callable[[UInts, UInts], UInts], keys: UInts) -> Ints:
        points = np.atleast_1d(np.asarray(values, dtype=np.int64)).astype(np.uint64).ravel()
        moved = turn(points, keys)
        outside = np.flatnonzero(moved >= np.uint64(self.size))
        while outside.size:
            own = keys if keys.shape[1] == 1 else keys[:, outside]
            moved[outside] = turn(moved[outside], own)
            outside = outside[moved[outside] >= np.uint64(self.size)]
        return moved.astype(np.int64).reshape(np.shape(values))

    def _encrypt(self, points: UInts, keys: UInts) -> UInts:
        row, column = _split(points, self._width)
        for index, key in enumerate(keys):
            if index % 2 == 0:
                column += _word(row, key, self._width)
                column = np.minimum(column, column - self._width)  # below 0 wraps round: the minimum is in range
            else:
                row += _word(column, key, self._height)
                row = np.minimum(row, row - self._height)
        row *= self._width
        row += column
        return row

    def _decrypt(self, points: UInts, keys: UInts) -> UInts:
        row, column = _split(points, self._width)
        for index, key in reversed(list(enumerate(keys))):
            if index % 2 == 0:
                column -= _word(row, key, self._width)
                column = np.minimum(column, column + self._width)
            else:
                row -= _word(column, key, self._height)
                row = np.minimum(row, row + self._height)
        row *= self._width
        row += column
        return row


def forward_each(permutations: Sequence[Permutation], owners: Ints, values: Ints) -> Ints:
    """Where each value goes under the permutation that it belongs to: all at once, for permutations of one size.

    Args:
        permutations: at least one. owners: [n] number of the permutation of each value. values: [n].
    """
    first = permutations[0]
    keys = np.concatenate([one._keys for one in permutations], axis=1)
    return first._walk(values, first._encrypt, keys if len(permutations) == 1 else keys[:, owners])


def _split(points: UInts, width: np.uint64) -> tuple[UInts, UInts]:
    row = points // width
    return row, points - row * width


def _word(half: UInts, key: UInts, modulus: np.uint64) -> UInts:
    """The round function. By division and not `%`: NumPy divides by one number many at a time."""
    word = mix64(half + key)
    turns = word // modulus
    turns *= modulus
    word -= turns
    return word
