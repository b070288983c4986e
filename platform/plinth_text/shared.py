"""Results about a column of texts that several annotators of one pass need, such as its words.

Annotators of one pass are given the same texts one after the other, so the results about the last column are kept, by
thread. A column is known by its memory, which is held as long as the results are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

from plinth_text.arrays import I64, U8


class _Last(threading.local):
    """Most recent column of this thread, and the results about it."""

    def __init__(self) -> None:
        self.column: tuple[U8, I64] | None = None
        self.results: dict[Hashable, Any] = {}


_last = _Last()


def of_column(data: U8, offsets: I64, key: Hashable, make: Callable[[U8, I64], Any]) -> Any:
    """Return the result of `make` for a column; it is called once for each key. `data` and `offsets` are those that
    `unicode.utf8` returns."""
    if _last.column is None or _place(*_last.column) != _place(data, offsets):
        forget()
        _last.column = data, offsets
    if key not in _last.results:
        _last.results[key] = make(data, offsets)
    return _last.results[key]


def forget() -> None:
    """Delete the most recent column and its results from memory."""
    _last.column, _last.results = None, {}


def _place(data: U8, offsets: I64) -> tuple[int, ...]:
    return data.ctypes.data, data.size, offsets.ctypes.data, offsets.size
