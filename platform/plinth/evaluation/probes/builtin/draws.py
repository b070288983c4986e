"""Choices by SHA-256 of a name: no generator whose stream a version of Python or NumPy could change."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def words(text: str) -> list[str]:
    """A list of words, as it reads best in a source file."""
    return text.split()


def number(name: str, low: int, high: int) -> int:
    """A number of low … high, both included."""
    return low + int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % (high - low + 1)


def one(name: str, options: Sequence[T]) -> T:
    """One of the options."""
    return options[number(name, 0, len(options) - 1)]


def shuffled(name: str, values: Sequence[T]) -> list[T]:
    """All values, in an order of the name and of how they print: texts and numbers."""
    # the value is hashed too, or two lists of one length would come in the same order
    keyed = [(hashlib.sha256(f"{name}:{i}:{value}".encode()).digest(), value) for i, value in enumerate(values)]
    return [value for _, value in sorted(keyed, key=lambda pair: pair[0])]


def some(name: str, values: Sequence[T], count: int) -> list[T]:
    """So many different ones of the values."""
    return shuffled(name, values)[:count]
