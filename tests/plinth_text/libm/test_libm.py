"""Exponentials and logarithms are those of the C library, whatever vector units numpy would use."""

import math

import numpy as np
import pytest

from plinth_text import libm

VALUES = np.concatenate([np.geomspace(1e-300, 1e300, 5001), np.random.default_rng(1).uniform(1e-9, 50, 5001)])


@pytest.mark.parametrize(
    ("ours", "theirs", "values"),
    [
        (libm.exp, math.exp, np.concatenate([-VALUES, VALUES[VALUES < 700]])),
        (libm.log, math.log, VALUES),
        (libm.log10, math.log10, VALUES),
        (libm.log1p, math.log1p, VALUES),
        (lambda x: libm.power(10.0, x), lambda x: math.pow(10.0, x), VALUES[VALUES < 300]),
    ],
)
def test_every_bit_is_the_c_librarys(ours, theirs, values) -> None:
    assert ours(values).tolist() == [theirs(x) for x in values.tolist()]


def test_shapes_stay_and_edges_are_ieee() -> None:
    assert libm.exp(np.zeros((2, 3))).shape == (2, 3)
    assert libm.log(np.float64(1.0)).shape == ()
    assert libm.log([0.0, -1.0]).tolist()[0] == -math.inf
    assert np.isnan(libm.log([-1.0])[0])
    assert libm.exp([-np.inf, np.inf]).tolist() == [0.0, math.inf]
