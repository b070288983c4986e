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
from plinth.compiled import njit

ROUNDS = 6  # Luby and Rackoff need 4 for a strong permutation; small domains are worth two more
MAX_SIZE = 2**62

UInts = NDArray[np.uint64]
Ints = NDArray[np.int64]

#: Columns of a permutation's parameters: the rectangle, the size, floor((2^64 - 1) / side) of both sides, and a key for
#: each round.
_WIDTH, _HEIGHT, _SIZE, _BY_WIDTH, _BY_HEIGHT, _KEYS = range(6)


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
        moved: Ints = _move(self.parameters[None], np.zeros(len(flat), np.int64), flat, inverse)
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
    moved: Ints = _move(table, owners, values, False)
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


@njit(nogil=True, cache=True)
def _move(table, owners, values, inverse):  # type: ignore[no-untyped-def]
    """Each value through its permutation, as often as it lies outside of the range."""
    moved = np.empty(len(values), np.int64)
    for i in range(len(values)):
        own = table[owners[i]]
        point = _decrypt(np.uint64(values[i]), own) if inverse else _encrypt(np.uint64(values[i]), own)
        while point >= own[_SIZE]:
            point = _decrypt(point, own) if inverse else _encrypt(point, own)
        moved[i] = point
    return moved


@njit(nogil=True, cache=True)
def _encrypt(point, own):  # type: ignore[no-untyped-def]
    width, height = own[_WIDTH], own[_HEIGHT]
    row, column = _divide(point, width, own[_BY_WIDTH])
    for at in range(0, ROUNDS, 2):
        column += _word(row, own[_KEYS + at], width, own[_BY_WIDTH])
        column = min(column, column - width)  # below 0 wraps round: the minimum is in range
        row += _word(column, own[_KEYS + at + 1], height, own[_BY_HEIGHT])
        row = min(row, row - height)
    return row * width + column


@njit(nogil=True, cache=True)
def _decrypt(point, own):  # type: ignore[no-untyped-def]
    width, height = own[_WIDTH], own[_HEIGHT]
    row, column = _divide(point, width, own[_BY_WIDTH])
    for at in range(ROUNDS - 2, -2, -2):
        row -= _word(column, own[_KEYS + at + 1], height, own[_BY_HEIGHT])
        row = min(row, row + height)
        column -= _word(row, own[_KEYS + at], width, own[_BY_WIDTH])
        column = min(column, column + width)
    return row * width + column


@njit(nogil=True, cache=True)
def _word(half, key, modulus, reciprocal):  # type: ignore[no-untyped-def]
    """The round function."""
    word = half + key
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return _divide(word ^ (word >> np.uint64(31)), modulus, reciprocal)[1]


@njit(nogil=True, cache=True)
def _divide(word, modulus, reciprocal):  # type: ignore[no-untyped-def]
    """Quotient and remainder by a product: with floor((2^64 - 1) / modulus) it is one too small at most. The machine's
    own division takes some 30 cycles."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b, c, d = word >> half, word & low, reciprocal >> half, reciprocal & low
    carried = a * d + (b * d >> half)
    quotient = a * c + (carried >> half) + ((carried & low) + b * c >> half)
    rest = word - quotient * modulus
    over = np.uint64(rest >= modulus)
    return quotient + over, rest - over * modulus
