"""One folded text, by the kernel behind `unicode.digests`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from plinth_text.unicode import fold, utf8


def fold_text(text: str) -> str:
    data, offsets = utf8(pa.array([text], pa.large_string()))
    out = np.empty(int(offsets[1]) + 1, dtype=np.uint8)
    return out[: fold(data, offsets[0], offsets[1], out)].tobytes().decode("utf-8", "replace")
