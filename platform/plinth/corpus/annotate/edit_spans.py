"""Spans of many documents as one Arrow column of `EDIT_TYPE`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.schemas import EDIT_TYPE

Integers = npt.NDArray[np.integer]


def spans(of: Integers, begin: Integers, end: Integers, why: Integers, reasons: Sequence[str], rows: int) -> pa.Array:
    """Spans that are cut, sorted by document and place; neighbours with the same reason become one.

    Args:
        of, begin, end, why: [S] document, code points (half open), and number of the reason.
        reasons: names of the reasons.
        rows: how many documents.
    """
    full = end > begin  # the last line of a text that ends with a line end holds nothing
    of, begin, end, why = of[full], begin[full], end[full], why[full]
    if of.size:
        order = np.lexsort((begin, of))
        of, begin, end, why = of[order], begin[order], end[order], why[order]
        fresh = np.ones(of.size, dtype=np.bool_)
        fresh[1:] = (of[1:] != of[:-1]) | (begin[1:] != end[:-1]) | (why[1:] != why[:-1])
        first = np.flatnonzero(fresh)
        last = np.concatenate([first[1:], [of.size]]) - 1
        of, begin, end, why = of[first], begin[first], end[last], why[first]
    made = pa.StructArray.from_arrays(
        [
            pa.array(begin, pa.int32()),
            pa.array(end, pa.int32()),
            pa.array([""], pa.string()).take(pa.array(np.zeros(of.size, dtype=np.int64))),
            pa.array(reasons, pa.string()).take(pa.array(why, pa.int64())),
        ],
        fields=list(EDIT_TYPE.value_type),
    )
    offsets = np.concatenate([[0], np.cumsum(np.bincount(of, minlength=rows))])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), made, type=EDIT_TYPE)
