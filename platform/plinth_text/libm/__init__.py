"""Exponentials and logarithms of the C library, element by element, with the same bits on every x86-64 processor.

numpy's functions use wider vector units (AVX-512) if the processor has them, and the last bit of their results then
differs from other machines. Use the functions of this module wherever a result enters a data version.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from plinth_text.arrays import F64
from plinth_text.compiled import compiled


def exp(x: npt.ArrayLike) -> F64:
    """Return e to the power of each element."""
    return _each(fill_exp, x)


def log(x: npt.ArrayLike) -> F64:
    """Return the natural logarithm of each element."""
    return _each(fill_log, x)


def log10(x: npt.ArrayLike) -> F64:
    """Return the decimal logarithm of each element."""
    return _each(fill_log10, x)


def log1p(x: npt.ArrayLike) -> F64:
    """Return the natural logarithm of 1 plus each element."""
    return _each(fill_log1p, x)


def power(base: float, x: npt.ArrayLike) -> F64:
    """Return `base` to the power of each element."""
    return _each(lambda values, out: fill_power(base, values, out), x)


def _each(fill: Callable[[F64, F64], None], x: npt.ArrayLike) -> F64:
    values = np.asarray(x, np.float64)
    out = np.empty(values.size)
    fill(np.ascontiguousarray(values).reshape(-1), out)
    return out.reshape(values.shape)


@compiled
def fill_exp(x: F64, out: F64) -> None:
    """Write e to the power of each element of `x` into `out`."""


@compiled
def fill_log(x: F64, out: F64) -> None:
    """Write the natural logarithm of each element of `x` into `out`."""


@compiled
def fill_log10(x: F64, out: F64) -> None:
    """Write the decimal logarithm of each element of `x` into `out`."""


@compiled
def fill_log1p(x: F64, out: F64) -> None:
    """Write the natural logarithm of 1 plus each element of `x` into `out`."""


@compiled
def fill_power(base: float, x: F64, out: F64) -> None:
    """Write `base` to the power of each element of `x` into `out`."""
