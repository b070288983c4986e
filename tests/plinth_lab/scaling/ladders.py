"""Ladders made from a known law."""

import numpy as np

from plinth_lab.scaling.fit import ScalingRun
from plinth_lab.scaling.law import CORRECTED, ScalingLaw

SIZES = np.geomspace(3e7, 5e8, 5)
MULTIPLES = (10, 20, 40, 80)


def ladder(noise: float = 0.0, seed: int = 0, law: ScalingLaw = CORRECTED) -> list[ScalingRun]:
    """Five sizes by four horizons; `noise` is the standard deviation of ln L."""
    draw = np.random.default_rng(seed)
    points = [(size, size * multiple) for size in SIZES.tolist() for multiple in MULTIPLES]
    return [
        ScalingRun(params=n, tokens=d, loss=law.loss(n, d) * float(np.exp(noise * draw.standard_normal())))
        for n, d in points
    ]
