"""The slope of a straight line through points, as of a loss over tokens."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from plinth.evaluation.statistics.estimate import Estimate, checked, student, unrounded


def slope(x: ArrayLike, y: ArrayLike, *, level: float = 0.95) -> Estimate:
    """Slope of y over x by ordinary least squares, [N] both, with Student's interval of N - 2 degrees of freedom.

    Points on a line have no interval and no p: flagged `DEGENERATE`, as nothing is known of what is about the line.

    Raises:
        ValueError: fewer than three points, or all at one place.
    """
    along = checked(x)
    values = checked(y, along)
    n, from_middle = len(along), along - math.fsum(along) / len(along)
    apart = math.fsum(from_middle**2)
    if n < 3 or not unrounded(math.sqrt(apart), float(np.abs(along).sum())):
        raise ValueError("a slope needs three points, not all at one place")
    about = values - math.fsum(values) / n
    found = math.fsum(from_middle * about) / apart
    residual = math.fsum((about - found * from_middle) ** 2)
    size = float(np.abs(values).sum() + abs(found) * np.abs(along).sum())
    error = unrounded(math.sqrt(residual), size) / math.sqrt((n - 2) * apart)
    return student(found, error, n - 2, level, n=n, clusters=n, method="least squares", test=True)
